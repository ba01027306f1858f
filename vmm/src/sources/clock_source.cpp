#include "sources/clock_source.hpp"

#include <algorithm>

#include "sources/clock_events.hpp"

namespace vmm {
namespace {

using vpmu::PlanEntry;

/// Period of the kicks that sample the privilege level, used while some counter counts at one level only.
constexpr std::chrono::nanoseconds level_sampling = std::chrono::milliseconds{1};

/// How late a kick may arrive: the timer is armed some time after the clock was read, and delivering the signal takes
/// time.
constexpr std::chrono::nanoseconds kick_delay = std::chrono::microseconds{100};

/// Products of time, rate and clock need more than 64 bits.
__extension__ using wide = unsigned __int128;

bool one_level_only(const PlanEntry& e) { return e.usr != e.os; }

bool is_counted(const PlanEntry& e) { return e.per_cycle ? clock_counts(e.counts, e.spec) : clock_counts(e.counts); }

/// The levels of the armed counters. An instruction at one of them gets their record, whatever it does: what is counted
/// happens in each.
WalkLevels levels_of(const vpmu::CountPlan& plan) {
  WalkLevels levels;
  for (const PlanEntry& e : plan.active()) {
    if (!e.armed || !is_counted(e)) continue;
    levels.usr = levels.usr || e.usr;
    levels.os = levels.os || e.os;
  }
  return levels;
}

}  // namespace

Result<void> ClockSource::program(const vpmu::CountPlan& plan) {
  if (plan_.size == 0 || plan.size == 0) seen_ticks_.reset();
  plan_ = plan;
  return {};
}

ClockSource::Rate ClockSource::rate_of(const PlanEntry& e, std::uint64_t tsc_khz) const {
  if (!is_counted(e)) return {};
  if (!vpmu::is_bus_clock(e.counts) || tsc_khz == 0) return {.events = 1, .ticks = 1};
  return {.events = bus_clock_.khz, .ticks = tsc_khz * bus_clock_.of};
}

// Ticks until a counter that counts now overflows.
std::uint64_t ClockSource::ticks_to_overflow(const PlanEntry& e, const Rate& rate) const {
  const wide needed = wide{e.distance} * rate.ticks - std::min(remainder_[e.counter.index()], rate.ticks - 1);
  return static_cast<std::uint64_t>(std::min<wide>((needed + rate.events - 1) / rate.events, ~std::uint64_t{0}));
}

// Guest time from the last sync() to the nearest overflow that has an effect.
std::optional<std::chrono::nanoseconds> ClockSource::until_due(std::uint64_t tsc_khz) const {
  std::optional<nanoseconds> nearest;
  const auto consider = [&](nanoseconds t) { nearest = nearest ? std::min(*nearest, t) : t; };
  for (const PlanEntry& e : plan_.active()) {
    const Rate rate = rate_of(e, tsc_khz);
    if (rate.events == 0) continue;
    if (one_level_only(e)) consider(level_sampling);
    if (!e.wants_overflow) continue;
    const wide time = wide{ticks_to_overflow(e, rate)} * 1'000'000 / tsc_khz + 1;
    constexpr wide max = 3'600'000'000'000;  // an hour: return and recompute
    consider(nanoseconds{static_cast<std::int64_t>(std::min(time, max))});
  }
  return nearest;
}

// Keeps a timer that is already armed unless it would fire too late: an early kick only costs a check. Postponing a
// pending kick at each exit would mean that a guest with frequent exits is never kicked.
Result<void> ClockSource::arm(VcpuBackend& backend, std::optional<nanoseconds> at_most) {
  if (at_most) VMM_TRY(timer_->arm_wall(*at_most));
  std::optional<nanoseconds> due = until_due(backend.tsc_khz());
  if (!due || (at_most && *at_most <= *due)) return {};
  due = std::max(*due, CpuTimer::min());
  const nanoseconds now = timer_->now();
  const nanoseconds until = now + *due;
  if (armed_until_ && *armed_until_ + kick_delay > now && *armed_until_ <= until) return {};
  armed_until_ = until;
  return timer_->arm(*due);
}

Result<RunEnd> ClockSource::run(VcpuBackend& backend, std::optional<nanoseconds> at_most) {
  if (plan_.size == 0 && !at_most) {
    VMM_ASSIGN(Exit exit, backend.run());
    return RunEnd{.exit = exit};
  }
  VMM_TRY(arm(backend, at_most));
  if (!seen_ticks_) seen_ticks_ = backend.unhalted_ticks();
  VMM_ASSIGN(const Exit exit, backend.run());
  kicked_ = std::holds_alternative<Interrupted>(exit);
  if (kicked_) armed_until_.reset();
  return RunEnd{.exit = exit};
}

Result<vpmu::CountDeltas> ClockSource::sync(VcpuBackend& backend) {
  vpmu::CountDeltas deltas;
  if (!seen_ticks_ || plan_.size == 0) return deltas;
  if (kicked_) {
    VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
    sampled_user_ = cpl_of(sregs) != 0;
    kicked_ = false;
  }
  std::uint64_t ticks = backend.unhalted_ticks() - *seen_ticks_;
  // Precise counters that are due at the same kick overflow one after the other, each with its own record. The
  // remaining ticks are counted by the next sync().
  for (const PlanEntry& e : plan_.active()) {
    const Rate rate = rate_of(e, backend.tsc_khz());
    if (e.precise && e.wants_overflow && rate.events != 0 && (sampled_user_ ? e.usr : e.os))
      ticks = std::min(ticks, ticks_to_overflow(e, rate));
  }
  *seen_ticks_ += ticks;
  for (PlanEntry& e : std::span{plan_.entries}.first(plan_.size)) {
    const Rate rate = rate_of(e, backend.tsc_khz());
    if (rate.events == 0 || !(sampled_user_ ? e.usr : e.os)) continue;
    const wide amount = wide{ticks} * rate.events + remainder_[e.counter.index()];
    const auto events = static_cast<std::uint64_t>(amount / rate.ticks);
    remainder_[e.counter.index()] = static_cast<std::uint64_t>(amount % rate.ticks);
    deltas[e.counter] = events;
    e.distance -= std::min(events, e.distance - 1);
  }
  return deltas;
}

Result<RunEnd> ClockSource::walk(VcpuBackend& backend) {
  // A walk only finds the instruction for a record, so the time it takes is not counted.
  armed_until_.reset();
  VMM_TRY(timer_->disarm());
  const std::uint64_t begin = backend.unhalted_ticks();
  VMM_ASSIGN(RunEnd end, walker_.walk(backend, levels_of(plan_)));
  if (seen_ticks_) *seen_ticks_ += backend.unhalted_ticks() - begin;
  return end;
}

void ClockSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  const WalkStatistics& w = walker_.statistics();
  visit("pmu.walk.records", w.walks);
  visit("pmu.walk.runs", w.runs);
  visit("pmu.walk.steps", w.steps);
  visit("pmu.walk.wrong_level", w.wrong_level);
  visit("pmu.walk.event_pending", w.event_pending);
  visit("pmu.walk.nothing_found", w.nothing_found);
  visit("pmu.walk.abandoned", w.abandoned);
}

}  // namespace vmm
