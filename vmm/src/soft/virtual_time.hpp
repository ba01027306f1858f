#pragma once
#include <cstdint>
#include <optional>

#include "sources/cpu_timer.hpp"

namespace vmm {

/// The time of a vCPU without KVM, in ticks of its TSC: it goes on only when it is told to. And the timers on it.
class VirtualTime {
 public:
  explicit VirtualTime(std::uint64_t tsc_khz) : tsc_khz_{tsc_khz} {}

  /// The vCPU has run for so long.
  void pass(std::uint64_t ticks);
  /// While it is watched: how long it has run.
  void watch(bool on) { watched_ = on; }
  [[nodiscard]] std::uint64_t unhalted() const { return unhalted_; }
  [[nodiscard]] std::uint64_t ran() const { return run_; }

  /// A timer has run out; forgets all of them if so.
  [[nodiscard]] bool take_due();
  /// Ticks until one does; very many without a timer.
  [[nodiscard]] std::uint64_t until_due() const;
  /// A halted vCPU waits: goes on to where a timer wakes it, or by `at_most` ticks, and says how many ticks that took.
  /// Empty when no timer runs and `at_most` is as good as for ever.
  std::optional<std::uint64_t> wait(std::uint64_t at_most);
  /// Since the start, halted or not.
  [[nodiscard]] std::uint64_t wall() const { return wall_; }

  /// Makes timers, which may not outlive this object. It must not move meanwhile.
  [[nodiscard]] TimerFactory timers();
  [[nodiscard]] std::uint64_t tsc_khz() const { return tsc_khz_; }

 private:
  class Timer;
  std::uint64_t tsc_khz_;
  std::uint64_t wall_{};      ///< Since the start, and of it:
  std::uint64_t run_{};       ///< not halted;
  std::uint64_t unhalted_{};  ///< not halted while watched.
  bool watched_{};
  std::optional<std::uint64_t> due_, wall_due_;  ///< In run_ and wall_.
};

}  // namespace vmm
