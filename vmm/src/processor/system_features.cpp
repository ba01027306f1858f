// The system instructions that depend on CPUID features.
#include "processor/far_transfer.hpp"
#include "processor/system_unit.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::exec::CpuFeature;
using vpmu::exec::VectorState;

constexpr std::uint64_t cr4_pae = bit(5), cr4_fsgsbase = bit(16), cr4_osxsave = bit(18);
constexpr std::uint64_t rflags_cf = bit(0), rflags_status = 0x8D5;

constexpr Raised gp{general_protection};
constexpr Raised ud{{.vector = vector_ud, .error_code = std::nullopt}};

}  // namespace

// SDM 2A CPUID: OSXSAVE follows CR4, APIC whether the APIC is enabled (3A 10.4.3), and the sizes of an XSAVE area the
// components enabled in XCR0.
void SystemUnit::cpuid() {
  constexpr std::uint32_t osxsave = 1U << 27U, apic = 1U << 9U;
  kvm_regs& r = s_->regs;
  const auto leaf = static_cast<std::uint32_t>(r.rax);
  const auto subleaf = static_cast<std::uint32_t>(r.rcx);
  CpuidRegisters out = cpuid_->get(leaf, subleaf);
  if (leaf == 1) out.ecx = (out.ecx & ~osxsave) | ((s_->sregs.cr4 & cr4_osxsave) != 0 ? osxsave : 0);
  if (leaf == 1 && (s_->sregs.apic_base & apic_base_enabled) == 0) out.edx &= ~apic;
  if (leaf == 0xD && subleaf <= 1 && features_->has(subleaf == 0 ? CpuFeature::xsave : CpuFeature::xsavec)) {
    const CpuidRegisters upper = cpuid_->get(0xD, 2);
    constexpr std::uint32_t legacy_and_header = 576;
    out.ebx = (s_->vectors.xcr0 & VectorState::avx) != 0 ? upper.ebx + upper.eax : legacy_and_header;
  }
  r.rax = out.eax;
  r.rbx = out.ebx;
  r.rcx = out.ecx;
  r.rdx = out.edx;
}

SystemResult SystemUnit::write_cr4(std::uint64_t value) {
  if ((value & ~features_->cr4()) != 0 || ((value & cr4_pae) == 0 && is_long_mode(s_->sregs))) return gp;
  s_->sregs.cr4 = value;
  return Completed{};
}

// SDM 2D XSETBV.
SystemResult SystemUnit::xsetbv() {
  if ((s_->sregs.cr4 & cr4_osxsave) == 0) return ud;
  const std::uint64_t value = (s_->regs.rdx & 0xFFFF'FFFF) << 32 | (s_->regs.rax & 0xFFFF'FFFF);
  if (static_cast<std::uint32_t>(s_->regs.rcx) != 0 || !features_->may_enable(value)) return gp;
  s_->vectors.xcr0 = value;
  return Completed{};
}

// SDM 2D XGETBV. The engine handles it unless it faults.
SystemResult SystemUnit::xgetbv() {
  if ((s_->sregs.cr4 & cr4_osxsave) == 0) return ud;
  const auto which = static_cast<std::uint32_t>(s_->regs.rcx);
  if (which > (features_->has(CpuFeature::xgetbv_ecx1) ? 1U : 0U)) return gp;
  const std::uint64_t value = s_->vectors.xcr0 & (which == 1 ? s_->vectors.in_use() : ~0ULL);
  s_->regs.rax = value & 0xFFFF'FFFF;
  s_->regs.rdx = value >> 32;
  return Completed{};
}

// SDM 2B RDFSBASE, 2D WRFSBASE.
SystemResult SystemUnit::read_base(const SystemInstruction& i) {
  if ((s_->sregs.cr4 & cr4_fsgsbase) == 0) return ud;
  set_gpr(i, segment(i.special).base);
  return Completed{};
}
SystemResult SystemUnit::write_base(const SystemInstruction& i) {
  if ((s_->sregs.cr4 & cr4_fsgsbase) == 0) return ud;
  const std::uint64_t value = i.bytes == 4 ? gpr(i) & 0xFFFF'FFFF : gpr(i);
  if (!vpmu::is_canonical(value, 48)) return gp;
  segment(i.special).base = value;
  return Completed{};
}

// SDM 2B RDRAND, RDSEED: CF reports that there is a number.
SystemResult SystemUnit::give_random(const SystemInstruction& i) {
  if (!features_->has(i.op == SystemOp::rdrand ? CpuFeature::rdrand : CpuFeature::rdseed)) return ud;
  set_gpr(i, random_.next());
  s_->regs.rflags = (s_->regs.rflags & ~rflags_status) | rflags_cf;
  return Completed{};
}

}  // namespace vmm
