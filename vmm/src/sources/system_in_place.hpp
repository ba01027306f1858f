#pragma once
#include <optional>
#include <vector>

#include "decode/instruction.hpp"
#include "processor/program_unit.hpp"
#include "processor/segment_unit.hpp"
#include "sources/foreign_msrs.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/observer.hpp"

namespace vmm {

/// Emulates system instructions for a source that runs guest code itself, if they affect no device but the local APIC.
/// All others, and every instruction that would fault, are left to the back end.
///
/// Accesses to the PMU's MSRs and counters become exits, like those of the back end. An access that the surrounding VMM
/// filters is left to the back end, so that the exit has the back end's own form.
class SystemInPlace {
 public:
  /// `view` must outlive it.
  SystemInPlace(GuestView& view, const vpmu::GenerationDesc& generation, ForeignMsrs others = {});

  enum class Outcome : std::uint8_t {
    left,  ///< Not emulated; nothing has changed.
    done,
    done_and_dropped,  ///< Done; cached translations of the guest's code may be stale: see dropped().
    done_and_raised,   ///< Done; an interrupt may now be pending.
    exit,              ///< The VMM must answer exit() first; then complete().
  };
  /// Runs the instruction, which must be 64-bit code, on the back end's registers. `regs` and `sregs` are copies of
  /// them and are updated too.
  Result<Outcome> run(VcpuBackend& backend, const Instruction& i, kvm_regs& regs, kvm_sregs& sregs);

  /// What SWAPGS does to the base of GS. False: the back end did not tell its MSRs.
  bool swap_gs(VcpuBackend& backend, __u64& base);
  /// What the TLBs have lost by the last Outcome::done_and_dropped.
  [[nodiscard]] const vpmu::TlbFlush& dropped() const { return dropped_; }

  /// Call before the back end runs the guest: gives it the MSRs that were kept here.
  Result<void> leave(VcpuBackend& backend);

  /// The exit of the last Outcome::exit. It refers to this object, which receives the answer.
  [[nodiscard]] Exit exit();
  [[nodiscard]] bool is_open() const { return pending_.kind != Pending::Kind::none; }
  /// Completes the instruction with the exit's answer; `regs` and `sregs` are then those after it. False if the answer
  /// was #GP: they are those at the handler or, if it cannot be entered, the exception is left to the back end.
  Result<bool> complete(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs);

 private:
  /// An access that the VMM answers.
  struct Pending {
    enum class Kind : std::uint8_t { none, rdmsr, wrmsr, rdpmc } kind{};
    std::uint8_t length{};
    std::uint32_t index{};
    unsigned long long data{};
    std::uint8_t gp{};
  };
  SystemResult execute(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  [[nodiscard]] __u64& base_by_msr();
  SystemResult read_base_msr();
  SystemResult write_base_msr();
  SystemResult load_cr3(const SystemInstruction& i);
  Result<Outcome> pass_on(VcpuBackend& backend, const SystemInstruction& i, kvm_regs& regs);
  Result<void> fetch(VcpuBackend& backend);
  Result<void> load(VcpuBackend& backend, const kvm_regs& regs, const kvm_sregs& sregs);
  Result<void> store(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs) const;
  Result<void> raise_gp(VcpuBackend& backend, kvm_regs& regs, kvm_sregs& sregs);
  [[nodiscard]] bool is_trapped(std::uint32_t msr) const;
  [[nodiscard]] bool is_others(const SystemInstruction& i, std::uint32_t msr) const;
  [[nodiscard]] std::optional<Pending::Kind> exit_of(const SystemInstruction& i, const kvm_regs& regs,
                                                     const kvm_sregs& sregs) const;

  GuestView* view_;
  SoftState state_;  ///< The registers of the instruction, and the MSRs that it uses.
  SegmentUnit segments_;
  ProgramUnit programs_;
  bool fetched_{};         ///< state_ has had the back end's MSRs since the last leave().
  bool swapped_gs_{};      ///< IA32_KERNEL_GS_BASE differs from the back end's.
  LostTranslations lost_;  ///< The back end has not been told.
  vpmu::TlbFlush dropped_{};
  vpmu::MsrSpans trapped_;
  ForeignMsrs others_;
  Pending pending_{};
};

}  // namespace vmm
