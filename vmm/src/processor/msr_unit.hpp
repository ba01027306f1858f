#pragma once
#include "processor/guest_features.hpp"
#include "processor/interrupt_unit.hpp"
#include "vpmu/bits.hpp"

namespace vmm {

inline constexpr std::uint32_t msr_tsc_aux = 0xC000'0103;
/// IA32_EFER has SCE, LME, LMA and NXE. SDM 3A 2.2.1.
inline constexpr std::uint64_t efer_lme = vpmu::bit(8), efer_lma = vpmu::bit(10),
                               efer_known = vpmu::bit(0) | efer_lme | efer_lma | vpmu::bit(11);

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

 private:
  vpmu::MsrStatus set_tsc(std::uint64_t value);
  vpmu::MsrStatus write_efer(std::uint64_t value);
  vpmu::MsrStatus write_apic_base(std::uint64_t value);

  SoftState* s_;
  InterruptUnit* interrupts_;
};

}  // namespace vmm
