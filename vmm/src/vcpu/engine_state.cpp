#include "vcpu/engine_state.hpp"

#include "decode/instruction.hpp"
#include "decode/registers.hpp"
#include "support/x86.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {
namespace {

/// Null segments do not count: programs have some, and use none.
bool is_flat(const kvm_segment& s) {
  constexpr std::uint8_t writable_upwards = 2, kinds = 0xE;
  const bool is_null = (s.selector & ~3U) == 0;
  return is_null || (s.limit == ~0U && (s.type & kinds) == writable_upwards);
}

}  // namespace

bool checks_alignment(const kvm_regs& regs, const kvm_sregs& sregs) {
  return cpl_of(sregs) == 3 && x86::rflags::AC::test(regs.rflags) && x86::cr0::AM::test(sregs.cr0);
}

bool checks_accesses(const kvm_regs& regs, const kvm_sregs& sregs) {
  if (cpl_of(sregs) != 3 || !x86::cr0::PE::test(sregs.cr0)) return false;
  if (checks_alignment(regs, sregs)) return true;
  if (code_mode(sregs) == CodeMode::bits64) return false;
  const bool all_flat = is_flat(sregs.ss) && is_flat(sregs.ds) && is_flat(sregs.es) && is_flat(sregs.fs) &&
                        is_flat(sregs.gs) && sregs.cs.limit == ~0U;
  return !all_flat;
}

vpmu::exec::CpuState engine_state(const kvm_regs& regs, const kvm_sregs& sregs, PagingLimits limits) {
  vpmu::exec::CpuState s;
  for (unsigned i = 0; i < gpr_fields.size(); ++i) s.gpr[i] = regs.*gpr_fields[i];
  s.mode = code_mode(sregs);
  s.stack_is_32_bit = sregs.ss.db != 0;
  s.segment_bases = {sregs.es.base, sregs.cs.base, sregs.ss.base, sregs.ds.base};
  s.rip = regs.rip;
  s.rflags = regs.rflags;
  s.fs_base = sregs.fs.base;
  s.gs_base = sregs.gs.base;
  s.cr2 = sregs.cr2;
  s.paging = paging_state(sregs, regs, limits);
  s.cpl = static_cast<std::uint8_t>(cpl_of(sregs));
  s.checks_accesses = checks_accesses(regs, sregs);
  return s;
}

kvm_regs kvm_state(const vpmu::exec::CpuState& s) {
  kvm_regs regs{};
  for (unsigned i = 0; i < gpr_fields.size(); ++i) regs.*gpr_fields[i] = s.gpr[i];
  regs.rip = s.rip;
  regs.rflags = s.rflags;
  return regs;
}

}  // namespace vmm
