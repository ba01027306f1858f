#pragma once
#include <cstdint>
#include <optional>

#include "perf/cpu_timer.hpp"
#include "processor/machine_clock.hpp"

namespace vmm {

/// The time of a vCPU without KVM, in ticks of its TSC, and its timers. Advances by pass() and with the shared clock.
class VirtualTime {
 public:
  /// `clock`, which the machine's vCPUs share, must outlive it.
  /// `core_khz`: the core's frequency; 0: the TSC's.
  VirtualTime(MachineClock& clock, std::uint64_t tsc_khz, std::uint64_t core_khz = 0)
      : clock_{&clock}, tsc_khz_{tsc_khz}, core_khz_{core_khz == 0 ? tsc_khz : core_khz} {}

  /// The vCPU has run that many instructions.
  void pass(std::uint64_t instructions);
  /// How long it has run while watched, in instructions.
  void watch(bool on) { watched_ = on; }
  [[nodiscard]] std::uint64_t unhalted() const { return unhalted_; }
  [[nodiscard]] std::uint64_t ran() const { return run_; }
  /// The same in cycles of the core.
  [[nodiscard]] std::uint64_t core_ran() const;

  /// The TSC now, and after that many more instructions.
  [[nodiscard]] std::uint64_t tsc() const { return clock_->now() + tsc_offset_; }
  [[nodiscard]] std::uint64_t tsc_after(std::uint64_t instructions) const {
    return clock_->after(instructions) + tsc_offset_;
  }
  void set_tsc(std::uint64_t value) { tsc_offset_ = value - clock_->now(); }

  [[nodiscard]] bool is_due() const;
  /// Whether a timer has expired; forgets all timers if so.
  [[nodiscard]] bool take_due();
  /// Instructions until a timer expires; very many without a timer.
  [[nodiscard]] std::uint64_t until_due() const;
  /// Ticks until a timer expires that runs even while the vCPU does not; very many without such a timer.
  [[nodiscard]] std::uint64_t until_wall_due() const;
  /// The machine's clock, which also runs while the vCPU is halted.
  [[nodiscard]] std::uint64_t wall() const { return clock_->now(); }

  /// The saved state: all but the timers, which belong to their users.
  struct Image {
    std::uint64_t tsc_offset{}, ran{}, unhalted{};
  };
  [[nodiscard]] Image image() const { return {.tsc_offset = tsc_offset_, .ran = run_, .unhalted = unhalted_}; }
  void restore(const Image& image) {
    tsc_offset_ = image.tsc_offset;
    run_ = image.ran;
    unhalted_ = image.unhalted;
  }

  /// Makes timers. This object must outlive them, and must not move meanwhile.
  [[nodiscard]] TimerFactory timers();
  [[nodiscard]] std::uint64_t tsc_khz() const { return tsc_khz_; }

 private:
  class Timer;
  MachineClock* clock_;
  std::uint64_t tsc_khz_, core_khz_;
  std::uint64_t tsc_offset_{};
  std::uint64_t run_{};       ///< Instructions run.
  std::uint64_t unhalted_{};  ///< Instructions run while watched.
  bool watched_{};
  std::optional<std::uint64_t> due_, wall_due_;  ///< Relative to run_, and to the clock.
};

}  // namespace vmm
