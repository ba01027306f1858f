#pragma once
#include "soft/debug_unit.hpp"
#include "soft/round_robin.hpp"
#include "soft/soft_core.hpp"

namespace vmm {

/// A processor's turns on its board: what it waits for, when it is ready, and for how long it may run.
class SoftTurn final : public TurnTaker {
 public:
  /// All must outlive it. `kick`: the vCPU's flag. Adds the processor to the board.
  SoftTurn(SoftCore& core, const DebugUnit& debug, volatile std::uint8_t& kick);

  /// The end of all turns: when the processor has run for that long in total.
  void stop_after(std::uint64_t instructions) { stop_after_ = instructions; }
  [[nodiscard]] bool is_over() const { return core_->time.ran() >= stop_after_; }

  /// Waits until the processor holds the turn, because it is its own or because it was kicked. True if another
  /// processor's turn was since the last call.
  [[nodiscard]] bool take();
  /// Whether it holds another's turn: it was let in for a kick.
  [[nodiscard]] bool is_let_in() const { return !core_->board.turns.owns(core_->state.id); }
  /// Whether the processor has nothing to run.
  [[nodiscard]] bool is_at_rest() const;
  /// It has nothing to run: waits for something. False if no processor will ever have anything to run.
  [[nodiscard]] bool rest();
  /// Instructions that may pass before run() must check something.
  [[nodiscard]] std::uint64_t until_due() const;
  [[nodiscard]] bool is_kicked() const { return kick_flag_.is_set(); }
  void forget_kick();

  bool is_ready() override;
  std::uint64_t until_ready() override;
  [[nodiscard]] bool may_be_woken() override;
  void kick() override;

 private:
  [[nodiscard]] bool is_woken() const;

  SoftCore* core_;
  const DebugUnit* debug_;
  volatile std::uint8_t* kicked_;
  vpmu::exec::KickFlag kick_flag_;
  std::uint64_t stop_after_{~0ULL};
  std::uint64_t seen_changes_{};  ///< RoundRobin::changes() at the last look.
};

}  // namespace vmm
