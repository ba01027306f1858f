#pragma once
#include <cstdint>
#include <optional>

#include "perf/cpu_timer.hpp"
#include "processor/machine_clock.hpp"

namespace vmm {

/// The time of a vCPU without KVM, in ticks of its TSC: it goes on only when it is told to. And the timers on it.
class VirtualTime {
 public:
  /// `clock`, which the machine's vCPUs share, must outlive it.
  VirtualTime(MachineClock& clock, std::uint64_t tsc_khz) : clock_{&clock}, tsc_khz_{tsc_khz} {}

  /// The vCPU has run so many instructions.
  void pass(std::uint64_t instructions);
  /// While it is watched: how long it has run, in instructions.
  void watch(bool on) { watched_ = on; }
  [[nodiscard]] std::uint64_t unhalted() const { return unhalted_; }
  [[nodiscard]] std::uint64_t ran() const { return run_; }

  /// The TSC now, and once so many instructions more have passed.
  [[nodiscard]] std::uint64_t tsc() const { return clock_->now() + tsc_offset_; }
  [[nodiscard]] std::uint64_t tsc_after(std::uint64_t instructions) const {
    return clock_->after(instructions) + tsc_offset_;
  }
  void set_tsc(std::uint64_t value) { tsc_offset_ = value - clock_->now(); }

  [[nodiscard]] bool is_due() const;
  /// A timer has run out; forgets all of them if so.
  [[nodiscard]] bool take_due();
  /// Instructions until one does; very many without a timer.
  [[nodiscard]] std::uint64_t until_due() const;
  /// Ticks until one does though the vCPU does not run; very many without such a timer.
  [[nodiscard]] std::uint64_t until_wall_due() const;
  /// Of the machine, halted or not.
  [[nodiscard]] std::uint64_t wall() const { return clock_->now(); }

  /// What is saved: all but the timers, which are their users'.
  struct Image {
    std::uint64_t tsc_offset{}, ran{}, unhalted{};
  };
  [[nodiscard]] Image image() const { return {.tsc_offset = tsc_offset_, .ran = run_, .unhalted = unhalted_}; }
  void restore(const Image& image) {
    tsc_offset_ = image.tsc_offset;
    run_ = image.ran;
    unhalted_ = image.unhalted;
  }

  /// Makes timers, which may not outlive this object. It must not move meanwhile.
  [[nodiscard]] TimerFactory timers();
  [[nodiscard]] std::uint64_t tsc_khz() const { return tsc_khz_; }

 private:
  class Timer;
  MachineClock* clock_;
  std::uint64_t tsc_khz_;
  std::uint64_t tsc_offset_{};
  std::uint64_t run_{};       ///< Not halted;
  std::uint64_t unhalted_{};  ///< not halted while watched.
  bool watched_{};
  std::optional<std::uint64_t> due_, wall_due_;  ///< In run_ and of the clock.
};

}  // namespace vmm
