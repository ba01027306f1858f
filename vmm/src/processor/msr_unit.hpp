#pragma once
#include "processor/guest_features.hpp"
#include "processor/interrupt_unit.hpp"
#include "vpmu/bits.hpp"

namespace vmm {

inline constexpr std::uint32_t msr_tsc_aux = 0xC000'0103;
/// Of IA32_EFER: SCE, LME, LMA and NXE are there. SDM 3A 2.2.1.
inline constexpr std::uint64_t efer_lme = vpmu::bit(8), efer_lma = vpmu::bit(10),
                               efer_known = vpmu::bit(0) | efer_lme | efer_lma | vpmu::bit(11);

/// The MSRs of a vCPU without KVM that KVM would keep: the processor's own, its APIC's, and what a kernel looks at when
/// it boots. Those of the PMU and all others are `unknown` here. SDM 3C chapter 35.
class MsrUnit {
 public:
  /// `state` and `interrupts` must outlive it.
  MsrUnit(SoftState& state, InterruptUnit& interrupts, const GuestFeatures& features);

  [[nodiscard]] vpmu::MsrReadResult read(std::uint32_t index);
  /// As the machine sets it up: what the guest may only read too.
  [[nodiscard]] vpmu::MsrStatus set(std::uint32_t index, std::uint64_t value);
  /// As the guest writes it; `gp` for what the register may not hold.
  [[nodiscard]] vpmu::MsrStatus write(std::uint32_t index, std::uint64_t value);

  /// Takes over a register that only holds what is written to it, as saved; false where it may not hold that.
  [[nodiscard]] bool restore(std::uint32_t index, std::uint64_t value);

 private:
  vpmu::MsrStatus set_tsc(std::uint64_t value);
  vpmu::MsrStatus write_efer(std::uint64_t value);
  vpmu::MsrStatus write_apic_base(std::uint64_t value);

  SoftState* s_;
  InterruptUnit* interrupts_;
};

}  // namespace vmm
