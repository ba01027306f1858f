#include "sources/perf_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "perf/perf_errors.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/counts.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using vpmu::PlanEntry;

bool is_clock(Counts counts) {
  return counts == Counts::cycles || counts == Counts::ref_cycles || vpmu::is_bus_clock(counts);
}

/// The events for which AMD's counters also count VMRUN.
bool is_branches(Counts counts) { return counts == Counts::branches || counts == Counts::branches_taken; }

/// Whether the engine can count the event; agrees with what `vpmu events` says of the exact source.
bool engine_knows(const PlanEntry& e) {
  const bool offcore = e.counts == Counts::offcore || e.counts == Counts::offcore_1;
  const bool is_known = e.counts != Counts::unmodelled && e.counts != Counts::never;
  return is_known && !vpmu::needs_pipeline(e.counts) && (!offcore || e.offcore != 0);
}

/// Counted by a model: the engine's caches and predictors differ from the host's, so its count cannot continue the
/// host's.
bool is_models(const PlanEntry& e) {
  return std::ranges::any_of(e.what(), [](Counts c) { return vpmu::uarch::ProcessorModel::tells(c); });
}

/// Whether the engine can take over the count from the host and give it back.
bool engine_goes_on(const PlanEntry& e) { return engine_knows(e) && !is_models(e); }

std::uint16_t raw_code(const PlanEntry& e) { return static_cast<std::uint16_t>(e.spec.code | (e.spec.umask << 8)); }

GuestEvent event_of(const PlanEntry& e) {
  return {.counts = e.counts, .spec = e.spec, .fixed = !e.counter.is_gp(), .per_cycle = e.per_cycle};
}

}  // namespace

PerfSource::PerfSource(std::unique_ptr<PerfHost> host, const PerfCalibration& calibration,
                       std::unique_ptr<ExactSource> exact, const vpmu::GenerationDesc& generation, Log& log)
    : host_{std::move(host)},
      cpu_{host_->cpu()},
      margins_{calibration},
      exact_{std::move(exact)},
      generation_{&generation},
      log_{&log},
      counts_entries_{cpu_.vendor == HostVendor::amd} {
  traits_.precise_ip = calibration.lands;
}

Result<void> PerfSource::program(const vpmu::CountPlan& plan) {
  plan_ = plan;
  rest_others();
  for (unsigned i = 0; i < plan_.size; ++i) {
    clocks_[i] = translate(cpu_, *generation_, event_of(plan_.entries[i])).of_tsc;
    by_[i] = choose(plan_.entries[i]);
  }
  const bool stays = plan_.branches_wanted || std::ranges::find(by_.begin(), by_.begin() + plan_.size,
                                                                Counter::engine) != by_.begin() + plan_.size;
  for (unsigned i = 0; i < plan_.size; ++i)
    if (stays && by_[i] == Counter::host_only) by_[i] = without_host(plan_.entries[i]);
  tell_moved();
  return exact_->program(in_engine_ ? engines_plan() : vpmu::CountPlan{});
}

/// The part of the plan that the engine counts: without the events that pause while it runs.
vpmu::CountPlan PerfSource::engines_plan() const {
  vpmu::CountPlan plan = plan_;
  plan.size = 0;
  for (unsigned i = 0; i < plan_.size; ++i)
    if (by_[i] != Counter::host_only) plan.entries[plan.size++] = plan_.entries[i];
  return plan;
}

/// Reports counters whose event is now counted by the engine instead of the host, or the reverse.
void PerfSource::tell_moved() {
  for (unsigned i = 0; i < plan_.size; ++i) {
    const PlanEntry& e = plan_.entries[i];
    if (!is_models(e)) continue;
    Teller& before = tellers_[e.counter.index()];
    const Teller now{.code = raw_code(e), .by = by_[i]};
    if (before.code == now.code && before.by != now.by) {
      ++statistics_.moved;
      log_->once(
          LogLevel::warning, "perf:moved",
          "source perf: event r{:04x} is counted {} from now on: branch records or precise samples need the engine, "
          "whose caches and predictors are a model's, and cold at first (pmu.perf.moved); count it without them",
          now.code, now.by == Counter::engine ? "by the engine" : "on the host");
    }
    before = now;
  }
}

/// Stops the host events of counters that are no longer in the plan. An event that fails to stop is closed.
void PerfSource::rest_others() {
  std::array<bool, vpmu::max_counters> counts{};
  for (const PlanEntry& e : plan_.active()) counts[e.counter.index()] = true;
  for (unsigned i = 0; i < vpmu::max_counters; ++i)
    if (!counts[i]) {
      entries_[i].reset();
      if (counters_[i] && !counters_[i]->stop()) counters_[i].reset();
    }
}

PerfSource::Counter PerfSource::choose(const PlanEntry& entry) {
  // For records the model reports on each load, so it must also have seen the loads before.
  if (is_models(entry) && engine_knows(entry) && (entry.precise || entry.armed)) return without_host(entry);
  const EventTranslation found = translate(cpu_, *generation_, event_of(entry));
  if (found.match != EventTranslation::Match::none && open(entry, found.event))
    return engine_goes_on(entry) ? Counter::host : Counter::host_only;
  return without_host(entry);
}

PerfSource::Counter PerfSource::without_host(const PlanEntry& entry) {
  counters_[entry.counter.index()].reset();
  if (engine_knows(entry)) {
    ++statistics_.by_engine[raw_code(entry)];
    return Counter::engine;
  }
  if (entry.counts != Counts::never) ++statistics_.refused[raw_code(entry)];  // else 0 is the right count
  return Counter::nobody;
}

/// False if the host turns out not to have the event, or cannot provide it now.
bool PerfSource::open(const PlanEntry& entry, const HostEvent& event) {
  auto& counter = counters_[entry.counter.index()];
  const PerfEventSpec spec{.event = event, .usr = entry.usr, .os = entry.os, .guest_only = true};
  if (!counter || counter->spec() != spec) {
    counter.reset();
    entries_[entry.counter.index()].reset();
    auto opened = HostCounter::open(*host_, spec);
    if (!opened && !is_of_one_event(opened.error())) lost(entry, opened.error());
    if (!opened) return false;
    counter = std::move(*opened);
    ++statistics_.opened;
  }
  const auto started = counter->start();
  if (!started) lost(entry, started.error());
  return started.has_value();
}

/// Warns once per cause: a host that has lost its counters may be asked thousands of times a second.
void PerfSource::lost(const PlanEntry& entry, const Error& why) {
  ++statistics_.lost;
  log_->once(LogLevel::warning, fmt::format("perf:{}", why.system_errno),
             "source perf: {}; until the host gives it back, {} counts event r{:04x} (pmu.perf.lost)", describe(why),
             engine_knows(entry) ? "the engine" : "nobody", raw_code(entry));
}

void PerfSource::starved(const PlanEntry& entry) {
  ++statistics_.starved;
  log_->once(
      LogLevel::warning, "perf:starved",
      "source perf: event r{:04x} got no counter of the host's for long: others hold them all, or the thread is on a "
      "CPU that does not have it; until it gets one {} counts (pmu.perf.starved); stop other perf sessions and the "
      "host's NMI watchdog (sysctl kernel.nmi_watchdog=0), or count fewer events in the guest",
      raw_code(entry), engine_goes_on(entry) ? "the engine" : "nobody");
}

/// A clock for which the host has no event counts as a fixed fraction of the TSC.
void PerfSource::scale(const VcpuBackend& backend) {
  for (unsigned i = 0; i < plan_.size; ++i) {
    auto& counter = counters_[plan_.entries[i].counter.index()];
    if (!counter) continue;
    const vpmu::Frequency& clock = clocks_[i];
    const bool scaled = clock.khz != 0 && backend.tsc_khz() != 0;
    counter->count_part(scaled ? HostCounter::Part{.of = clock.khz, .in = backend.tsc_khz() * clock.of}
                               : HostCounter::Part{});
  }
}

std::uint64_t PerfSource::margin_of(const PlanEntry& entry) const {
  return is_clock(entry.counts) ? margins_.margin_cycles : margins_.margin_instructions;
}

bool PerfSource::wants_engine() const {
  if (plan_.branches_wanted || plan_.any_armed()) return true;
  for (unsigned i = 0; i < plan_.size; ++i) {
    const PlanEntry& e = plan_.entries[i];
    if (by_[i] == Counter::engine) return true;
    if (by_[i] != Counter::host) continue;
    const HostCounter& counter = *counters_[e.counter.index()];
    if (counter.is_starved() || (e.wants_overflow && e.distance < margin_of(e) + counter.min_kick())) return true;
  }
  return false;
}

// Calls `act` for each host event. An error means that the host took the event away: it is then counted without the
// host.
template <class Act>
void PerfSource::for_each_host_event(const Act& act) {
  for (unsigned i = 0; i < plan_.size; ++i) {
    if (by_[i] != Counter::host && by_[i] != Counter::host_only) continue;
    const PlanEntry& e = plan_.entries[i];
    const Result<void> done = act(*counters_[e.counter.index()], e);
    if (done) continue;
    lost(e, done.error());
    by_[i] = without_host(e);
  }
}

// Host events also count what KVM single-steps for the engine. The engine has counted that, so skip() drops it.
Result<void> PerfSource::use_engine(bool on) {
  if (on == in_engine_ || (in_engine_ && open_instruction_)) return {};
  in_engine_ = on;
  if (on) {
    ++statistics_.windows;
    return exact_->program(engines_plan());
  }
  for_each_host_event([this](HostCounter& counter, const PlanEntry& e) {
    entries_[e.counter.index()].reset();
    return counter.skip();
  });
  return exact_->program({});
}

void PerfSource::look_for_starved() {
  for_each_host_event([](HostCounter& counter, const PlanEntry&) -> Result<void> {
    if (counter.is_starved()) VMM_TRY(counter.has_recovered());
    return {};
  });
}

// A period that is too short for the driver is replaced by the shortest one if only the host counts the event: the
// overflow comes later. If a VM entry counts as an event, one is added: a period of 1 would let the guest do nothing.
void PerfSource::arm() {
  for_each_host_event([this](HostCounter& counter, const PlanEntry& e) -> Result<void> {
    const bool by_engine = engine_goes_on(e);
    std::optional<std::uint64_t> after;
    if (e.wants_overflow) after = by_engine ? e.distance - margin_of(e) : std::max(e.distance, counter.min_kick());
    if (after && has_entries(e)) ++*after;
    for (bool armed = false; !armed;) {
      VMM_ASSIGN(armed, counter.kick_after(after));
      if (armed) break;
      ++statistics_.short_periods;
      if (by_engine) break;
      after = counter.min_kick();
    }
    return {};
  });
}

// Given an empty plan, the exact source lets the guest run freely. wants_engine() is asked again as arm() may lose
// events.
Result<RunEnd> PerfSource::run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  scale(backend);
  look_for_starved();
  VMM_TRY(use_engine(wants_engine()));
  if (!in_engine_) arm();
  VMM_TRY(use_engine(wants_engine()));
  if (!in_engine_) look_at_entries(backend);
  VMM_ASSIGN(RunEnd end, exact_->run(backend, at_most));
  note(end);
  return end;
}

Result<RunEnd> PerfSource::walk(VcpuBackend& backend) {
  VMM_TRY(use_engine(true));
  VMM_ASSIGN(RunEnd end, exact_->walk(backend));
  note(end);
  return end;
}

Result<RunEnd> PerfSource::come_out(VcpuBackend& backend) {
  VMM_ASSIGN(RunEnd end, exact_->come_out(backend));
  note(end);
  return end;
}

void PerfSource::note(const RunEnd& end) {
  const bool written = end.exit && std::holds_alternative<MsrWrite>(*end.exit);
  const bool kicked = end.exit && std::holds_alternative<Interrupted>(*end.exit);
  open_instruction_ = in_engine_ && !end.retired && !written && !kicked;
  if (!end.retired) return;
  for (PlanEntry& e : std::span{plan_.entries}.first(plan_.size))
    if (end.retired->what.cpl == 0 ? e.os : e.usr) e.distance -= std::min<std::uint64_t>(1, e.distance - 1);
}

Result<vpmu::CountDeltas> PerfSource::sync(VcpuBackend& backend) {
  VMM_ASSIGN(vpmu::CountDeltas deltas, exact_->sync(backend));
  if (!in_engine_)
    for_each_host_event([&](HostCounter& counter, const PlanEntry& e) { return take(backend, counter, e, deltas); });
  for (PlanEntry& e : std::span{plan_.entries}.first(plan_.size))
    e.distance -= std::min(deltas[e.counter], e.distance - 1);
  return deltas;
}

Result<void> PerfSource::take(VcpuBackend& backend, HostCounter& counter, const PlanEntry& e,
                              vpmu::CountDeltas& deltas) {
  const bool was_starved = counter.is_starved();
  VMM_ASSIGN(const HostCounter::Taken taken, counter.take());
  statistics_.guessed += taken.guessed;
  statistics_.unseen_us += taken.unseen_ns / 1000;
  if (counter.is_starved() && !was_starved) starved(e);
  const std::uint64_t events = without_entries(backend, e, taken);
  if (e.wants_overflow && engine_goes_on(e) && events >= e.distance) overshot(e, taken.guessed == 0 ? events : 0);
  deltas[e.counter] += events;
  return {};
}

// VM entries are known only in total, so they cannot be subtracted from a counter of one privilege level.
bool PerfSource::has_entries(const PlanEntry& e) const {
  return counts_entries_ && e.usr && e.os && is_branches(e.counts);
}

void PerfSource::look_at_entries(const VcpuBackend& backend) {
  for (const PlanEntry& e : plan_.active())
    if (auto& entries = entries_[e.counter.index()]; has_entries(e) && !entries) entries = backend.entries();
}

// Fewer branches than VM entries show that this host does not count entries as branches.
std::uint64_t PerfSource::without_entries(const VcpuBackend& backend, const PlanEntry& e,
                                          const HostCounter::Taken& taken) {
  auto& before = entries_[e.counter.index()];
  const auto now = before && !taken.waits ? backend.entries() : std::nullopt;
  if (!now) return taken.events;
  const std::uint64_t entered = *now - *before;
  before = now;
  if (taken.unseen_ns != 0) return taken.events;
  if (taken.events < entered && taken.guessed == 0) counts_entries_ = false;
  if (!counts_entries_) return taken.events;
  const std::uint64_t vmruns = std::min(entered, taken.events);
  statistics_.vmruns += vmruns;
  return taken.events - vmruns;
}

/// The guest ran past an overflow although the kick was set margin_of() events before it: widens the margin.
void PerfSource::overshot(const PlanEntry& entry, std::uint64_t events) {
  ++statistics_.overshoots;
  if (events == 0) return;
  std::uint64_t& margin = is_clock(entry.counts) ? margins_.margin_cycles : margins_.margin_instructions;
  const std::uint64_t late = margin + (events - entry.distance);
  margin = std::min(late + late / 2, max_margin);
}

void PerfSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.perf.windows", statistics_.windows);
  visit("pmu.perf.overshoots", statistics_.overshoots);
  visit("pmu.perf.guessed", statistics_.guessed);
  visit("pmu.perf.opened", statistics_.opened);
  visit("pmu.perf.short_periods", statistics_.short_periods);
  visit("pmu.perf.moved", statistics_.moved);
  visit("pmu.perf.lost", statistics_.lost);
  visit("pmu.perf.starved", statistics_.starved);
  visit("pmu.perf.unseen_us", statistics_.unseen_us);
  visit("pmu.perf.vmruns", statistics_.vmruns);
  visit("pmu.perf.margin", margins_.margin_instructions);
  visit("pmu.perf.margin_cycles", margins_.margin_cycles);
  for (const auto& [code, count] : statistics_.by_engine) visit(fmt::format("pmu.perf.by_engine.r{:04x}", code), count);
  for (const auto& [code, count] : statistics_.refused) visit(fmt::format("pmu.perf.refused.r{:04x}", code), count);
  exact_->visit_statistics(visit);
}

}  // namespace vmm
