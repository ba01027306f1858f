// The system instructions that depend on CPUID features.
#include "decode/registers.hpp"
#include "processor/far_transfer.hpp"
#include "processor/system_operands.hpp"
#include "processor/system_unit.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::exec::CpuFeature;

}  // namespace

// SDM 2A CPUID: OSXSAVE follows CR4, APIC whether the APIC is enabled (3A 10.4.3), and the sizes of an XSAVE area the
// components enabled in XCR0.
CpuidRegisters SystemUnit::cpuid(std::uint32_t leaf, std::uint32_t subleaf) const {
  constexpr std::uint32_t osxsave = 1U << 27U, apic = 1U << 9U;
  CpuidRegisters out = cpuid_->get(leaf, subleaf);
  if (leaf == 1) out.ecx = (out.ecx & ~osxsave) | (x86::cr4::OSXSAVE::test(s_->sregs.cr4) ? osxsave : 0);
  if (leaf == 1 && !x86::apic_base::EN::test(s_->sregs.apic_base)) out.edx &= ~apic;
  if (leaf == 0xD && subleaf <= 1 && features_->has(subleaf == 0 ? CpuFeature::xsave : CpuFeature::xsavec)) {
    const CpuidRegisters upper = cpuid_->get(0xD, 2);
    constexpr std::uint32_t legacy_and_header = 576;
    out.ebx = (s_->vectors.xcr0 & x86::xcr0::AVX::mask) != 0 ? upper.ebx + upper.eax : legacy_and_header;
  }
  return out;
}

// SDM 3A 4.5: in IA-32e mode the bits beyond physical addresses are reserved. 4.10.4.1: with PCIDs, bit 63 keeps
// translations, and is not stored.
SystemResult SystemUnit::write_cr3(std::uint64_t value) {
  if (x86::cr4::PCIDE::test(s_->sregs.cr4)) value &= ~x86::cr3::KEEPS::mask;
  const std::uint64_t beyond = ~vpmu::low_bits(features_->paging().physical_width);
  if (is_long_mode(s_->sregs) && (value & beyond) != 0) return raised_gp;
  if (x86::cr0::PG::test(s_->sregs.cr0) && has_bad_table_pointers(value, s_->sregs.cr4)) return raised_gp;
  s_->sregs.cr3 = value;
  return Completed{};
}

/// Whether PAE paging outside of IA-32e mode, once it is on, would load a pointer with a reserved bit. SDM 3A 4.4.1,
/// table 4-8.
bool SystemUnit::has_bad_table_pointers(std::uint64_t cr3, std::uint64_t cr4) {
  constexpr std::uint64_t table = 0xFFFF'FFE0, reserved = vpmu::Bits<2, 1>::mask | vpmu::Bits<8, 5>::mask;
  if (!x86::cr4::PAE::test(cr4) || is_long_mode(s_->sregs)) return false;
  const std::uint64_t beyond = ~vpmu::low_bits(features_->paging().physical_width);
  for (unsigned n = 0; n < 4; ++n) {
    const auto pointer = view_->word_at(vpmu::GuestPhysical{(cr3 & table) + 8ULL * n});
    if (pointer && (*pointer & 1) != 0 && (*pointer & (reserved | beyond)) != 0) return true;
  }
  return false;
}

SystemResult SystemUnit::write_cr4(std::uint64_t value) {
  constexpr std::uint64_t of_tables = x86::cr4::PAE::mask | bit(4) | bit(7) | bit(20);  // PSE, PGE, SMEP
  if ((value & ~features_->cr4()) != 0 || (!x86::cr4::PAE::test(value) && is_long_mode(s_->sregs))) return raised_gp;
  // SDM 3A 4.10.1.
  const bool enables_pcids = x86::cr4::PCIDE::test(value & ~s_->sregs.cr4);
  if (enables_pcids && (!is_long_mode(s_->sregs) || x86::cr3::PCID::get(s_->sregs.cr3) != 0)) return raised_gp;
  const bool changes_tables = x86::cr0::PG::test(s_->sregs.cr0) && ((value ^ s_->sregs.cr4) & of_tables) != 0;
  if (changes_tables && has_bad_table_pointers(s_->sregs.cr3, value)) return raised_gp;
  s_->sregs.cr4 = value;
  return Completed{};
}

// SDM 2A INVPCID. More may be lost than it says: one address, in all address spaces; or everything.
SystemResult SystemUnit::invalidate_by_pcid(const SystemInstruction& i, std::uint64_t descriptor) {
  constexpr std::uint64_t of_address = 0, of_pcid = 1, last = 3;
  if (!features_->has_invpcid()) return raised_ud;
  if (cpl_of(s_->sregs) != 0) return raised_gp;
  struct {
    std::uint64_t pcid, linear;
  } what{};
  const std::uint64_t type = gpr(*s_, i) & vpmu::low_bits(is_64_bit_code(s_->sregs) ? 64 : 32);
  if (type > last) return raised_gp;
  if (const auto fault =
          view_->read_current(vpmu::GuestLinear{descriptor}, std::as_writable_bytes(std::span{&what, 1})))
    return Raised{page_fault(*s_, *fault)};
  const bool pcids = x86::cr4::PCIDE::test(s_->sregs.cr4);
  const bool bad_pcid = (type == of_address || type == of_pcid) && what.pcid != 0 && !pcids;
  if (what.pcid > x86::cr3::PCID::mask || bad_pcid) return raised_gp;
  if (type == of_address && !vpmu::is_canonical(what.linear, 48)) return raised_gp;
  using enum vpmu::TlbFlush::Of;
  invalidated_ = {.of = type == of_address ? page : everything,
                  .pcid = x86::pcid_of(s_->sregs.cr3, s_->sregs.cr4),
                  .linear = what.linear};
  return Completed{};
}

// SDM 2D XSETBV.
SystemResult SystemUnit::xsetbv() {
  if (!x86::cr4::OSXSAVE::test(s_->sregs.cr4)) return raised_ud;
  const std::uint64_t value = edx_eax(s_->regs);
  if (static_cast<std::uint32_t>(s_->regs.rcx) != 0 || !features_->may_enable(value)) return raised_gp;
  s_->vectors.xcr0 = value;
  return Completed{};
}

// SDM 2D XGETBV. The engine handles it unless it faults.
SystemResult SystemUnit::xgetbv() {
  if (!x86::cr4::OSXSAVE::test(s_->sregs.cr4)) return raised_ud;
  const auto which = static_cast<std::uint32_t>(s_->regs.rcx);
  if (which > (features_->has(CpuFeature::xgetbv_ecx1) ? 1U : 0U)) return raised_gp;
  const std::uint64_t value = s_->vectors.xcr0 & (which == 1 ? s_->vectors.in_use() : ~0ULL);
  set_edx_eax(s_->regs, value);
  return Completed{};
}

// SDM 2B RDRAND, RDSEED: CF reports that there is a number.
SystemResult SystemUnit::give_random(const SystemInstruction& i) {
  if (!features_->has(i.op == SystemOp::rdrand ? CpuFeature::rdrand : CpuFeature::rdseed)) return raised_ud;
  set_gpr(*s_, i, random_.next());
  s_->regs.rflags = (s_->regs.rflags & ~x86::rflags::status) | x86::rflags::CF::mask;
  return Completed{};
}

}  // namespace vmm
