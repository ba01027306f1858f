#pragma once
#include <optional>
#include <vector>

#include "decode/instruction.hpp"
#include "processor/system_unit.hpp"
#include "sources/others_msrs.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

/// Emulates system instructions for a source that runs guest code itself, if they affect no device but the local APIC.
/// All others, and every instruction that would fault, are left to the port.
///
/// Accesses to the PMU's MSRs and counters become exits, like those of the port. An access that the surrounding VMM
/// filters is left to the port, so that the exit has the port's own form.
class SystemInPlace {
 public:
  /// `view` must outlive it.
  SystemInPlace(GuestView& view, const vpmu::GenerationDesc& generation, OthersMsrs others = {});

  enum class Outcome : std::uint8_t {
    left,  ///< Not emulated; nothing has changed.
    done,
    done_and_dropped,  ///< Done; cached translations of the guest's code may be stale.
    done_and_raised,   ///< Done; an interrupt may now be pending.
    exit,              ///< The VMM must answer exit() first; then complete().
  };
  /// Runs the instruction, which must be 64-bit code, on the port's registers. `regs` and `sregs` are copies of them
  /// and are updated too.
  Result<Outcome> run(VcpuPort& port, const Instruction& i, kvm_regs& regs, kvm_sregs& sregs);

  /// Call before the port runs the guest: writes MSRs that were kept here back to the port.
  Result<void> leave(VcpuPort& port);

  /// The exit of the last Outcome::exit. It refers to this object, which receives the answer.
  [[nodiscard]] Exit exit();
  [[nodiscard]] bool is_open() const { return open_.kind != Open::Kind::none; }
  /// Completes the instruction with the exit's answer; `regs` and `sregs` are then those after it. False if the answer
  /// was #GP: they are those at the handler or, if it cannot be entered, the exception is left to the port.
  Result<bool> complete(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs);

 private:
  struct Open {
    enum class Kind : std::uint8_t { none, rdmsr, wrmsr, rdpmc } kind{};
    std::uint8_t length{};
    std::uint32_t index{};
    unsigned long long data{};
    std::uint8_t gp{};
  };
  Result<Outcome> pass_on(VcpuPort& port, const SystemInstruction& i, kvm_regs& regs);
  Result<void> fetch(VcpuPort& port);
  Result<void> load(VcpuPort& port, const kvm_regs& regs, const kvm_sregs& sregs);
  Result<void> store(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs) const;
  Result<void> raise_gp(VcpuPort& port, kvm_regs& regs, kvm_sregs& sregs);
  [[nodiscard]] bool is_trapped(std::uint32_t msr) const;
  [[nodiscard]] bool is_others(const SystemInstruction& i, std::uint32_t msr) const;
  [[nodiscard]] std::optional<Open::Kind> opens(const SystemInstruction& i, const kvm_regs& regs,
                                                const kvm_sregs& sregs) const;

  GuestView* view_;
  CpuidTable no_cpuid_;
  GuestFeatures no_features_{no_cpuid_};
  SoftState state_;
  bool fetched_{};               ///< state_ has had the port's MSRs since the last leave().
  bool swapped_gs_{};            ///< IA32_KERNEL_GS_BASE differs from the port's.
  bool dropped_translations_{};  ///< The port has not been told that translations are stale.
  MachineClock no_clock_;
  VirtualTime no_time_{no_clock_, 1};
  InterruptUnit interrupts_{state_, no_time_, nullptr};
  MsrUnit msrs_{state_, interrupts_, no_features_};
  SystemUnit unit_;
  vpmu::MsrSpans trapped_;
  OthersMsrs others_;
  Open open_{};
};

}  // namespace vmm
