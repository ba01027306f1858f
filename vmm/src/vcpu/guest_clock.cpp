#include "vcpu/guest_clock.hpp"

#include <algorithm>
#include <utility>

namespace vmm {
void GuestClock::watch(bool on) {
  if (on == watched_) return;
  watched_ = on;
  if (!on) left_at_ = 0;
  to_hide_ = 0;
  unseen_ = 0;
}

Result<void> GuestClock::enter(ClockHost& host) {
  running_ = watched_;
  if (!watched_) return {};
  if (left_at_ != 0) pass_exit(host.ticks() - left_at_);
  const std::uint64_t hidden_before = statistics_.hidden_ticks;
  if (to_hide_ != 0) VMM_TRY(shift(host));
  halted_at_entry_ = host.halted();
  entered_at_ = host.ticks();
  // The part of the exit that was not hidden is counted, as the guest sees it.
  const std::uint64_t hidden = statistics_.hidden_ticks - hidden_before;
  if (hidden != 0 && left_at_ != 0 && left_for_ != ExitCause::device) {
    const std::uint64_t seen = entered_at_ - left_at_ + unseen_ - hidden;
    late_ = seen - std::min(seen, passed_);
    unhalted_ += seen - late_;
  }
  return {};
}

void GuestClock::pass_exit(std::uint64_t outside) {
  if (left_for_ != ExitCause::device && time_ == PmuTime::hidden) {
    to_hide_ += outside - std::min(outside, passed_);
    return;
  }
  // Counts no more of an exit than the guest itself just ran: otherwise the cost of sampling would use up a short
  // sampling period, and the guest would make no progress.
  unhalted_ += left_for_ != ExitCause::device ? std::min(outside, last_ran_) : outside;
}

// The shift takes time too. The guest sees it, except for the shortest time that a shift takes.
Result<void> GuestClock::shift(ClockHost& host) {
  const std::uint64_t begin = host.ticks();
  const auto offset = host.tsc_offset();
  if (!offset) {
    time_ = PmuTime::real;
    to_hide_ = 0;
    return {};
  }
  to_hide_ += shift_takes_.ticks();
  VMM_TRY(host.set_tsc_offset(*offset - to_hide_));
  statistics_.hidden_ticks += to_hide_;
  ++statistics_.shifts;
  to_hide_ = 0;
  VMM_TRY(host.rearm_deadline());
  shift_takes_.add(host.ticks() - begin);
  return {};
}

std::uint64_t GuestClock::ran(std::uint64_t round, std::chrono::nanoseconds halted) const {
  __extension__ using wide = unsigned __int128;
  const auto ticks = static_cast<std::uint64_t>(
      wide{static_cast<std::uint64_t>(std::max<std::int64_t>(halted.count(), 0))} * tsc_khz_ / 1'000'000);
  return round - std::min(ticks, round);
}

// Part of an exit's time lies in the world switches around it, which we cannot see. Single-steps measure it, as the
// guest does next to nothing in one. Other rounds do not: the guest may have run long in all of them. A round in which
// the guest could not look at the clock is one tick.
std::uint64_t GuestClock::unseen(ExitCause cause, std::uint64_t round) {
  if (cause == ExitCause::device) return 0;
  if (cause == ExitCause::step || cause == ExitCause::once) step_takes_.add(round);
  return cause == ExitCause::once ? round - std::min<std::uint64_t>(round, 1) : step_takes_.ticks();
}

void GuestClock::leave(ClockHost& host, ExitCause cause) {
  left_at_ = host.ticks();
  left_for_ = cause;
  passed_ = 0;
  if (!running_) return;
  running_ = false;
  const std::uint64_t round = left_at_ - entered_at_;
  last_ran_ = ran(round, host.halted() - halted_at_entry_);
  if (time_ == PmuTime::hidden) {
    unseen_ = std::min(unseen(cause, round), last_ran_);
    to_hide_ += unseen_;
    last_ran_ -= unseen_;
  }
  const std::uint64_t late = std::exchange(late_, 0);
  if (time_ == PmuTime::hidden && cause == ExitCause::once) {
    unseen_ += late;
    to_hide_ += late;
  } else {
    unhalted_ += late;
  }
  unhalted_ += last_ran_;
}

Result<std::uint64_t> GuestClock::stands_at(ClockHost& host) const {
  VMM_ASSIGN(const std::uint64_t offset, host.tsc_offset());
  const std::uint64_t now = host.ticks();
  return (stands() ? std::min(now, left_at_ + passed_) : now) + offset - to_hide_;
}

}  // namespace vmm
