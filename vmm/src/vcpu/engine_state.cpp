#include "vcpu/engine_state.hpp"

#include "decode/instruction.hpp"
#include "decode/registers.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {
vpmu::exec::CpuState engine_state(const kvm_regs& regs, const kvm_sregs& sregs) {
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
  s.paging = paging_state(sregs, regs);
  s.cpl = static_cast<std::uint8_t>(cpl_of(sregs));
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
