#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "support/result.hpp"

namespace vmm {

/// Whether the guest's clock sees the time that the VMM spends on the exits of the virtual PMU.
enum class PmuTime : std::uint8_t {
  hidden,  ///< The vCPU's TSC stands still meanwhile, if it is the machine's only vCPU.
  real,    ///< The TSC runs on.
};

/// The setting for each vCPU of a machine with `vcpus` of them. If the TSC of one stood still while others ran on, time
/// would seem to run backwards, to threads that exchange times and to threads that migrate between vCPUs.
constexpr PmuTime time_beside_others(PmuTime wanted, std::size_t vcpus) { return vcpus > 1 ? PmuTime::real : wanted; }

/// What a vCPU's clock needs from the host. Every member belongs to the vCPU's thread.
class ClockHost {
 public:
  virtual ~ClockHost() = default;
  /// The host's TSC, at the rate of the guest's.
  [[nodiscard]] virtual std::uint64_t ticks() const = 0;
  /// Total time for which the vCPU has been halted.
  [[nodiscard]] virtual std::chrono::nanoseconds halted() const = 0;
  /// What is added to the host's TSC to give the guest's. Fails where one vCPU's clock cannot be shifted (Linux
  /// before 5.16).
  virtual Result<std::uint64_t> tsc_offset() = 0;
  virtual Result<void> set_tsc_offset(std::uint64_t offset) = 0;
  /// Arms the LAPIC's TSC-deadline timer again: its deadline is the same, but its clock has been shifted.
  virtual Result<void> rearm_deadline() = 0;
};

/// Why the vCPU left the guest, as far as its clock is concerned.
enum class ExitCause : std::uint8_t {
  device,  ///< Hardware would have taken time too.
  pmu,     ///< Hardware with a PMU of its own would not have left.
  step,    ///< As pmu, after exactly one instruction.
  once,    ///< As pmu, after one instruction that does not read the time, or after the delivery of an event.
};

/// The least time that some operation of the host takes: three quarters of the smallest of many measurements. A few are
/// not enough, as the host may have been busy in all of them. Hiding more time than was spent would turn the guest's
/// clock back.
class LeastTime {
 public:
  static constexpr unsigned enough = 32;
  void add(std::uint64_t ticks) {
    min_ = std::min(min_, ticks);
    if (measured_ < enough) ++measured_;
  }
  /// 0 until there are enough measurements.
  [[nodiscard]] std::uint64_t ticks() const { return measured_ < enough ? 0 : min_ / 4 * 3; }

 private:
  std::uint64_t min_{~0ULL};
  unsigned measured_{};
};

struct GuestClockStatistics {
  std::uint64_t hidden_ticks{};  ///< TSC ticks hidden from the guest in total.
  std::uint64_t shifts{};        ///< Times that the TSC offset was changed.
};

/// The clock of one vCPU while its virtual PMU is in use: measures how long the guest has run, and decides what it sees
/// of the host's time.
///
/// An exit of the PMU (an MSR, a breakpoint, a step, a kick) costs microseconds where hardware would take none. If the
/// guest saw that time, a profile would show mostly the profiler: each sample would include the cost of the last one,
/// timer ticks would fall into handlers, and Linux would find its PMI handler slow and lower
/// perf_event_max_sample_rate. On a slow host it would never get on: the timer would expire again before its handler,
/// with the exits that it causes, has ended. So the vCPU's TSC stands still from such an exit to the next entry, and
/// where it is known what the guest did in a run, for all of that run but one tick. Hidden time is never
/// given back: the guest's clock lags the host's by that much. It does not run backwards as long as switches and shifts
/// take no less than LeastTime says. Exits to devices are not hidden; nor is anything while the PMU is not in use. In a
/// machine with several vCPUs nothing is hidden (time_beside_others).
class GuestClock {
 public:
  /// `tsc_khz`: the guest's TSC rate.
  GuestClock(PmuTime time, std::uint64_t tsc_khz) : time_{time}, tsc_khz_{tsc_khz} {}

  /// Hides nothing from now on: the vCPU is no longer the only one. Time that is hidden already stays so. Call between
  /// leave() and enter(), or before the first.
  void show_all() {
    time_ = PmuTime::real;
    to_hide_ = 0;
  }

  /// Sets the rate of the guest's TSC, and whether time is hidden, from now on.
  void follow(std::uint64_t tsc_khz, PmuTime time) {
    tsc_khz_ = tsc_khz;
    time_ = time;
  }

  /// Whether the PMU is in use from now on; the exit that changes this belongs to the use. While it is not in use, the
  /// clock counts nothing.
  void watch(bool on);
  /// Whether enter() has nothing to do.
  [[nodiscard]] bool is_idle() const { return !watched_; }
  /// Call just before the vCPU runs; may change its TSC offset.
  Result<void> enter(ClockHost& host);
  /// Call just after the vCPU ran.
  void leave(ClockHost& host, ExitCause cause);

  /// Between leave() and enter(): another user has run the vCPU, and may have set its TSC. The time since leave() is
  /// neither hidden nor counted.
  void forget_exit() { left_at_ = 0; }

  /// Between leave() and enter(): `ticks` worth of the guest's instructions were emulated. The guest sees that much of
  /// the time since leave().
  void pass(std::uint64_t ticks) { passed_ += ticks; }

  /// TSC ticks that the vCPU has run unhalted while watched, as the guest saw them.
  [[nodiscard]] std::uint64_t unhalted_ticks() const { return unhalted_; }
  /// The guest's TSC at this moment, between leave() and enter().
  Result<std::uint64_t> stands_at(ClockHost& host) const;
  /// Between leave() and enter(): whether the vCPU may run one instruction that does not read the time, with a pass(1)
  /// instead of enter() and leave(). Allowed for a limited time only, as timers expire by the host's clock.
  [[nodiscard]] bool may_stand_on(const ClockHost& host) const {
    return hides() && stands() && host.ticks() - left_at_ < tsc_khz_ * max_stand_ms;
  }
  [[nodiscard]] bool hides() const { return watched_ && time_ == PmuTime::hidden; }

  [[nodiscard]] const GuestClockStatistics& statistics() const { return statistics_; }

 private:
  static constexpr std::uint64_t max_stand_ms = 1;
  [[nodiscard]] bool stands() const { return left_at_ != 0 && left_for_ != ExitCause::device; }
  [[nodiscard]] std::uint64_t ran(std::uint64_t round, std::chrono::nanoseconds halted) const;
  void pass_exit(std::uint64_t outside);
  [[nodiscard]] std::uint64_t unseen(ExitCause cause, std::uint64_t round);
  Result<void> shift(ClockHost& host);

  PmuTime time_;
  std::uint64_t tsc_khz_;
  bool watched_{};
  bool running_{};  ///< Between enter() and leave().
  ExitCause left_for_{};
  std::uint64_t unhalted_{};
  std::uint64_t to_hide_{};     ///< Ticks that the next entry will hide from the guest.
  std::uint64_t entered_at_{};  ///< Host TSC.
  std::uint64_t left_at_{};     ///< Host TSC; 0 = no exit that counts.
  std::uint64_t last_ran_{};
  std::uint64_t passed_{};  ///< Ticks from pass() since left_at_.
  std::uint64_t unseen_{};  ///< Of to_hide_: world switches around the last run, and late_ of before it.
  std::uint64_t late_{};    ///< What the last shift could not hide of the exit: the next can, unless the guest looks.
  std::chrono::nanoseconds halted_at_entry_{};
  LeastTime shift_takes_;
  LeastTime step_takes_;  ///< From the entry for one instruction to the return.
  GuestClockStatistics statistics_{};
};

}  // namespace vmm
