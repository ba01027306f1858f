#pragma once
#include <optional>
#include <vector>

#include "decode/instruction.hpp"
#include "processor/system_unit.hpp"
#include "sources/others_msrs.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

/// The system instructions that a source which runs guest code itself does in the vCPU's place, where no device but the
/// local APIC sees them. Everything else, and every instruction that would fault, is the port's.
///
/// MSRs of the PMU and its counters become exits, as the port would make them. An access that somebody else filters is
/// the port's, whose exit is then in the port's own form.
class SystemInPlace {
 public:
  /// `view` must outlive it.
  SystemInPlace(GuestView& view, const vpmu::GenerationDesc& generation, OthersMsrs others = {});

  enum class Outcome : std::uint8_t {
    left,  ///< Nothing has changed.
    done,
    done_and_dropped,  ///< And translations that the guest's code was run with may be stale.
    done_and_raised,   ///< And an interrupt may now wait.
    exit,              ///< The VMM must answer exit() first; then complete().
  };
  /// Runs the instruction, of 64-bit code, on the registers that the port holds: `regs` and `sregs` are copies of them
  /// and change with them.
  Result<Outcome> run(VcpuPort& port, const Instruction& i, kvm_regs& regs, kvm_sregs& sregs);

  /// The port is going to run the guest: gives it what was kept of its MSRs.
  Result<void> leave(VcpuPort& port);

  /// The exit of the last Outcome::exit. It refers to this object, which keeps the answer.
  [[nodiscard]] Exit exit();
  [[nodiscard]] bool is_open() const { return open_.kind != Open::Kind::none; }
  /// Ends the instruction by its answer: the registers are those behind it. False when the answer was #GP: then they
  /// are those at the handler, or, where it cannot be entered, the exception is the port's to deliver.
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
  bool fetched_{};               ///< The port's MSRs are in state_, since leave().
  bool swapped_gs_{};            ///< IA32_KERNEL_GS_BASE is no longer the port's.
  bool dropped_translations_{};  ///< And the port does not know.
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
