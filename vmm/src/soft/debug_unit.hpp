#pragma once
#include <optional>
#include <span>

#include "decode/instruction.hpp"
#include "processor/debug_registers.hpp"

namespace vmm {

/// Breakpoints and single-steps of a vCPU without KVM, the guest's own or its host's: which are in force, what an
/// instruction has hit, and what waits behind MOV SS. SDM 3B 17.2, 17.3.
class DebugUnit {
 public:
  /// `state` must outlive it.
  explicit DebugUnit(SoftState& state) : s_{&state} {}

  void set_host(const kvm_guest_debug& host) { host_ = host; }
  [[nodiscard]] Watch watch() const { return watch_of(*s_, host_); }
  /// Whether the host holds interrupts off (KVM_GUESTDBG_BLOCKIRQ).
  [[nodiscard]] bool blocks_interrupts() const { return (host_.control & KVM_GUESTDBG_BLOCKIRQ) != 0; }

  /// A run() begins.
  void begin_run() { loaded_ss_ = false; }
  /// The instruction breakpoints that hit before the next instruction, as bits of DR6.
  [[nodiscard]] std::uint64_t hits_before(const Watch& watch) const;
  /// The next instruction runs: it is not behind an earlier MOV SS.
  void begin_instruction() { loaded_ss_ = false; }
  /// MOV SS has run, which holds off #DB for `hits`.
  void hold(std::uint64_t hits) {
    loaded_ss_ = true;
    held_hits_ = hits;
  }
  [[nodiscard]] bool is_behind_mov_ss() const { return (s_->events.interrupt.shadow & KVM_X86_SHADOW_INT_MOV_SS) != 0; }
  [[nodiscard]] bool holds_hits() const { return held_hits_ != 0; }
  [[nodiscard]] std::uint64_t take_held_hits();
  /// DR6.BS if the guest's single-step traps after the instruction that was to go on at `next`, and that `exits` before
  /// it is done.
  [[nodiscard]] std::uint64_t trap_behind(const Watch& watch, const std::optional<Instruction>& i, std::uint64_t next,
                                          bool exits) const;
  /// Whether a repeated string instruction, whose first iteration has these accesses, can cause #DB between two.
  [[nodiscard]] bool runs_by_iterations(const Watch& watch, const Instruction& i, std::span<const Access> first) const;
  /// What #DB leaves in DR6 and, SDM 3B 17.4.3, in DEBUGCTL.BTF.
  void report(std::uint64_t hits);

  /// DEBUGCTL.BTF: single-steps are of branches.
  [[nodiscard]] bool steps_branches() const { return branch_steps_; }
  void step_branches(bool on) { branch_steps_ = on; }
  /// INIT.
  void reset() { restore({}); }

  struct Image {
    std::uint64_t held_hits{}, branch_steps{};
  };
  [[nodiscard]] Image image() const { return {.held_hits = held_hits_, .branch_steps = branch_steps_}; }
  void restore(const Image& image);

 private:
  SoftState* s_;
  kvm_guest_debug host_{};
  std::uint64_t held_hits_{};  ///< Data breakpoints hit by MOV SS: reported after the next instruction.
  bool loaded_ss_{};           ///< MOV SS has run since run() began, and nothing after it.
  bool branch_steps_{};
};

}  // namespace vmm
