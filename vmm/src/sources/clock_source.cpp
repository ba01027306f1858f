#include "sources/clock_source.hpp"

#include <algorithm>

#include "sources/clock_rates.hpp"

namespace vmm {
namespace {

using vpmu::PlanEntry;

/// Kicks that sample the privilege level while some counter looks at one level only.
constexpr std::chrono::nanoseconds level_sampling = std::chrono::milliseconds{1};

/// Products of time, rate and clock need more than 64 bits.
__extension__ using wide = unsigned __int128;

/// events = nanoseconds x kHz x rate / denominator: 10^6 for ns x kHz to cycles, 10^3 for the rate.
constexpr std::uint64_t denominator = 1'000'000'000;

/// Events per 1000 cycles. The guest is told that its crystal clock runs at the TSC's rate (CPUID.15H), so all clocks are one.
std::uint64_t rate_of(const PlanEntry& e) {
  const ClockRate rate = clock_rate(e.counts, e.per_cycle ? e.spec : vpmu::EventSpec{});
  switch (rate.basis) {
    case ClockBasis::none: return 0;
    case ClockBasis::time: return 1000;
    case ClockBasis::rate: return rate.per_1000_cycles;
  }
  return 0;
}

bool one_level_only(const PlanEntry& e) { return e.usr != e.os; }

/// How long the guest ran in a stretch of `wall` time with `cpu` time on the thread. The host's interrupts are charged to nobody, but the
/// guest's TSC goes on in them, so small gaps belong to the guest; a large one is a halt, or another thread's turn.
std::chrono::nanoseconds guests_share(std::chrono::nanoseconds cpu, std::chrono::nanoseconds wall) {
  return cpu * 4 >= wall * 3 ? std::max(cpu, wall) : cpu;
}

}  // namespace

Result<void> ClockSource::program(const vpmu::CountPlan& plan) {
  if (plan_.size == 0 || plan.size == 0) left_at_ = nanoseconds{0};
  plan_ = plan;
  return {};
}

// The nearest overflow that has an effect, as time in the guest from the last sync().
std::optional<std::chrono::nanoseconds> ClockSource::until_due(std::uint64_t tsc_khz) const {
  std::optional<nanoseconds> nearest;
  const auto consider = [&](nanoseconds t) { nearest = nearest ? std::min(*nearest, t) : t; };
  for (const PlanEntry& e : plan_.active()) {
    const std::uint64_t rate = rate_of(e);
    if (rate == 0) continue;
    if (one_level_only(e)) consider(level_sampling);
    if (!e.wants_overflow) continue;
    const wide needed = wide{e.distance} * denominator - std::min<wide>(remainder_[e.counter.index()], denominator - 1);
    const wide time = needed / (wide{tsc_khz} * rate) + 1;
    constexpr wide longest = 3'600'000'000'000;  // an hour: come back and look again
    consider(nanoseconds{static_cast<std::int64_t>(std::min(time, longest))});
  }
  return nearest;
}

// Leaves an armed timer alone unless it fires too late: a kick that comes early only costs a look.
Result<void> ClockSource::arm(VcpuPort& port, std::optional<nanoseconds> at_most) {
  std::optional<nanoseconds> due = until_due(port.tsc_khz());
  if (due) {
    *due -= guest_time_;
    *due -= std::min(owed_, *due / 2);  // what sync() will pay beside the guest's own time
    due = std::max(*due, CpuTimer::shortest());
  }
  if (at_most) due = due ? std::min(*due, *at_most) : *at_most;
  if (!due) return {};
  const nanoseconds now = timer_->now();
  const nanoseconds until = now + *due;
  if (armed_until_ > now && armed_until_ <= until) return {};
  armed_until_ = until;
  return timer_->arm(*due);
}

Result<RunEnd> ClockSource::run(VcpuPort& port, std::optional<nanoseconds> at_most) {
  if (plan_.size == 0 && !at_most) {
    VMM_ASSIGN(Exit exit, port.run());
    return RunEnd{.exit = exit};
  }
  if (left_at_ != nanoseconds{0}) owed_ += timer_->wall() - left_at_;
  VMM_TRY(arm(port, at_most));
  const nanoseconds entered = timer_->now();
  const nanoseconds entered_wall = timer_->wall();
  auto exit = port.run();
  left_at_ = timer_->wall();
  guest_time_ += guests_share(timer_->now() - entered, left_at_ - entered_wall);
  if (!exit) return Failure{exit.error()};
  kicked_ = std::holds_alternative<Interrupted>(*exit);
  if (kicked_) armed_until_ = nanoseconds{0};
  return RunEnd{.exit = *exit};
}

Result<vpmu::CountDeltas> ClockSource::sync(VcpuPort& port) {
  vpmu::CountDeltas deltas;
  if (guest_time_ == nanoseconds{0} || plan_.size == 0) {
    guest_time_ = nanoseconds{0};
    return deltas;
  }
  if (kicked_) {
    VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
    sampled_user_ = cpl_of(sregs) != 0;
    kicked_ = false;
  }
  // What our exits took has passed on the guest's clock too. Never more of it at a time than the guest ran itself: a short sampling
  // period must not be used up by the cost of sampling, or the guest would not get on.
  const nanoseconds paid = std::min(owed_, guest_time_);
  owed_ -= paid;
  const auto time = static_cast<std::uint64_t>((guest_time_ + paid).count());
  guest_time_ = nanoseconds{0};
  for (PlanEntry& e : std::span{plan_.entries}.first(plan_.size)) {
    const std::uint64_t rate = rate_of(e);
    if (rate == 0 || !(sampled_user_ ? e.usr : e.os)) continue;
    const wide amount = wide{time} * port.tsc_khz() * rate + remainder_[e.counter.index()];
    const auto events = static_cast<std::uint64_t>(amount / denominator);
    remainder_[e.counter.index()] = static_cast<std::uint64_t>(amount % denominator);
    deltas[e.counter] = events;
    e.distance -= std::min(events, e.distance - 1);
  }
  return deltas;
}

Result<RunEnd> ClockSource::walk(VcpuPort& port, const vpmu::CountPlan& plan) {
  // Nearly all the time of a walk is the cost of stopping twice, not the guest's: none of it is counted.
  armed_until_ = nanoseconds{0};
  VMM_ASSIGN(RunEnd end, walker_.walk(port, goal_of(plan)));
  if (end.retired) state_outcome(plan, end.retired->what);
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
