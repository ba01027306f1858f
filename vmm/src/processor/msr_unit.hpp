#pragma once
#include "processor/guest_features.hpp"
#include "processor/interrupt_unit.hpp"
#include "support/x86.hpp"

namespace vmm {

/// IA32_EFER has SCE, LME, LMA and NXE. SDM 3A 2.2.1.
inline constexpr std::uint64_t efer_known =
    x86::efer::SCE::mask | x86::efer::LME::mask | x86::efer::LMA::mask | x86::efer::NXE::mask;

/// The MSRs that KVM would hold for a vCPU, for one without KVM: the processor's own, its APIC's, and those that
/// kernels read at boot. The PMU's and all others are `unknown` here. SDM 3C chapter 35.
class MsrUnit {
 public:
  /// `state` and `interrupts` must outlive it.
  MsrUnit(SoftState& state, InterruptUnit& interrupts, const GuestFeatures& features);

  [[nodiscard]] vpmu::MsrReadResult read(std::uint32_t index);
  /// A write by the VMM, also to registers that are read-only for the guest.
  [[nodiscard]] vpmu::MsrStatus set(std::uint32_t index, std::uint64_t value);
  /// A write by the guest; `gp` for a value that the register may not hold.
  [[nodiscard]] vpmu::MsrStatus write(std::uint32_t index, std::uint64_t value);

  /// Restores a register that is only stored here, as saved; false if it may not hold that value.
  [[nodiscard]] bool restore(std::uint32_t index, std::uint64_t value);

  /// Whether a write of the MSR changes nothing that code or its translation depends on.
  [[nodiscard]] static bool is_confined(std::uint32_t index);

 private:
  vpmu::MsrStatus set_tsc(std::uint64_t value);
  vpmu::MsrStatus write_efer(std::uint64_t value);
  vpmu::MsrStatus write_apic_base(std::uint64_t value);

  SoftState* s_;
  InterruptUnit* interrupts_;
};

}  // namespace vmm
