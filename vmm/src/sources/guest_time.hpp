#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "sources/on_demand_model.hpp"
#include "sources/unhalted_clocks.hpp"

namespace vmm {

/// How long what the guest has run took: the one place where instructions become cycles. Whoever ran instructions says
/// so, and gets what has passed on the vCPU's clocks meanwhile.
class GuestTime {
 public:
  /// Both must outlive it.
  GuestTime(OnDemandModel& model, UnhaltedClocks& clocks) : model_{&model}, clocks_{&clocks} {}

  /// The engine has run that many instructions; `now` is Engine::observed().
  Ticks ran(std::uint64_t instructions, std::uint64_t now) { return pass(model_->take_cycles(instructions, now)); }
  /// The engine has run one instruction. With `splits`, what has passed is told in two parts: while the instruction was
  /// the oldest that had not retired, and the cycle in which it did.
  struct One {
    Ticks waiting, retiring;
  };
  One ran_one(std::uint64_t now, bool splits) {
    const std::uint64_t cycles = model_->take_cycles(1, now);
    const std::uint64_t last = splits ? std::min<std::uint64_t>(cycles, 1) : cycles;
    One one;
    if (cycles != last) one.waiting = pass(cycles - last);
    one.retiring = pass(last);
    return one;
  }
  /// Somebody else has run an instruction.
  Ticks ran_elsewhere(std::uint64_t now) {
    model_->pause(now);
    return pass(model_->take_cycles(1, now));
  }

  /// What take_passed() would give after `now` instructions of the engine.
  std::uint64_t passing(std::uint64_t now) { return passed_ + clocks_->ref_after(model_->look_at_cycles(now)); }
  /// Ticks of the guest's TSC since the last call: what it must advance by.
  std::uint64_t take_passed() { return std::exchange(passed_, 0); }

 private:
  Ticks pass(std::uint64_t cycles) {
    const Ticks ticks = clocks_->pass(cycles);
    passed_ += ticks.ref;
    return ticks;
  }

  OnDemandModel* model_;
  UnhaltedClocks* clocks_;
  std::uint64_t passed_{};
};

}  // namespace vmm
