#include "sources/perf_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sources/perf_errors.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using vpmu::PlanEntry;

bool is_clock(Counts counts) {
  return counts == Counts::cycles || counts == Counts::ref_cycles || counts == Counts::bus_cycles;
}

/// Whether the engine ever counts it: as well as `vpmu events` tells of the exact source.
bool engine_knows(const PlanEntry& e) {
  const bool offcore = e.counts == Counts::offcore || e.counts == Counts::offcore_1;
  return e.counts != Counts::unmodelled && e.counts != Counts::never && (!offcore || e.offcore != 0);
}

std::uint16_t raw_code(const PlanEntry& e) { return static_cast<std::uint16_t>(e.spec.code | (e.spec.umask << 8)); }

GuestEvent event_of(const PlanEntry& e) {
  return {.counts = e.counts, .spec = e.spec, .fixed = !e.counter.is_gp(), .per_cycle = e.per_cycle};
}

}  // namespace

PerfSource::PerfSource(std::unique_ptr<PerfHost> host, const PerfCalibration& calibration,
                       std::unique_ptr<ExactSource> exact, const vpmu::GenerationDesc& generation)
    : host_{std::move(host)},
      cpu_{host_->cpu()},
      margins_{calibration},
      exact_{std::move(exact)},
      generation_{&generation} {
  traits_.precise_ip = calibration.lands;
}

Result<void> PerfSource::program(const vpmu::CountPlan& plan) {
  plan_ = plan;
  VMM_TRY(rest_others());
  for (unsigned i = 0; i < plan_.size; ++i) {
    VMM_ASSIGN(by_[i], choose(plan_.entries[i]));
  }
  return exact_->program(in_engine_ ? plan_ : vpmu::CountPlan{});
}

/// Host events of counters that count no more.
Result<void> PerfSource::rest_others() {
  std::array<bool, vpmu::max_counters> counts{};
  for (const PlanEntry& e : plan_.active()) counts[e.counter.index()] = true;
  for (unsigned i = 0; i < vpmu::max_counters; ++i)
    if (counters_[i] && !counts[i]) VMM_TRY(counters_[i]->stop());
  return {};
}

Result<PerfSource::Counter> PerfSource::choose(const PlanEntry& entry) {
  const EventTranslation found = translate(cpu_, *generation_, event_of(entry));
  bool by_host = found.match != EventTranslation::Match::none;
  if (by_host) {
    VMM_ASSIGN(by_host, open(entry, found.event));
  }
  if (by_host) return engine_knows(entry) ? Counter::host : Counter::host_only;
  if (auto& unused = counters_[entry.counter.index()]) VMM_TRY(unused->stop());
  if (engine_knows(entry)) {
    ++statistics_.by_engine[raw_code(entry)];
    return Counter::engine;
  }
  if (entry.counts != Counts::never) ++statistics_.refused[raw_code(entry)];  // else 0 is right
  return Counter::nobody;
}

/// False where the host does not have that event after all.
Result<bool> PerfSource::open(const PlanEntry& entry, const HostEvent& event) {
  auto& counter = counters_[entry.counter.index()];
  const PerfEventSpec spec{.event = event, .usr = entry.usr, .os = entry.os, .guest_only = true};
  if (!counter || counter->spec() != spec) {
    counter.reset();
    auto opened = HostCounter::open(*host_, spec);
    if (!opened && is_of_one_event(opened.error())) return false;
    if (!opened) return Failure{std::move(opened).error()};
    counter = std::move(*opened);
    ++statistics_.opened;
  }
  VMM_TRY(counter->start());
  return true;
}

std::uint64_t PerfSource::margin_of(const PlanEntry& entry) const {
  return is_clock(entry.counts) ? margins_.margin_cycles : margins_.margin_instructions;
}

bool PerfSource::wants_engine() const {
  if (plan_.branches_wanted || plan_.any_armed()) return true;
  for (unsigned i = 0; i < plan_.size; ++i) {
    const PlanEntry& e = plan_.entries[i];
    if (by_[i] == Counter::engine) return true;
    if (by_[i] == Counter::host && e.wants_overflow && e.distance <= margin_of(e)) return true;
  }
  return false;
}

// The host's events go on counting what KVM single-steps for the engine: that is counted already.
Result<void> PerfSource::use_engine(bool on) {
  if (on == in_engine_ || (in_engine_ && open_instruction_)) return {};
  in_engine_ = on;
  if (on) {
    ++statistics_.windows;
    return exact_->program(plan_);
  }
  for (const PlanEntry& e : plan_.active())
    if (auto& counter = counters_[e.counter.index()]) VMM_TRY(counter->skip());
  return exact_->program({});
}

Result<void> PerfSource::arm() {
  for (unsigned i = 0; i < plan_.size; ++i) {
    const PlanEntry& e = plan_.entries[i];
    if (by_[i] == Counter::nobody) continue;
    std::optional<std::uint64_t> after;
    if (e.wants_overflow) after = by_[i] == Counter::host ? e.distance - margin_of(e) : e.distance;
    VMM_TRY(counters_[e.counter.index()]->kick_after(after));
  }
  return {};
}

// Without a plan of its own the exact source lets the guest run freely.
Result<RunEnd> PerfSource::run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  VMM_TRY(use_engine(wants_engine()));
  if (!in_engine_) VMM_TRY(arm());
  VMM_ASSIGN(RunEnd end, exact_->run(port, at_most));
  note(end);
  return end;
}

Result<RunEnd> PerfSource::walk(VcpuPort& port, const vpmu::CountPlan& plan) {
  VMM_TRY(use_engine(true));
  VMM_ASSIGN(RunEnd end, exact_->walk(port, plan));
  note(end);
  return end;
}

Result<RunEnd> PerfSource::come_out(VcpuPort& port) {
  VMM_ASSIGN(RunEnd end, exact_->come_out(port));
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

Result<vpmu::CountDeltas> PerfSource::sync(VcpuPort& port) {
  VMM_ASSIGN(vpmu::CountDeltas deltas, exact_->sync(port));
  for (unsigned i = 0; i < plan_.size; ++i) {
    PlanEntry& e = plan_.entries[i];
    const bool by_host = by_[i] == Counter::host || by_[i] == Counter::host_only;
    if (by_host && !in_engine_) {
      VMM_ASSIGN(const HostCounter::Taken taken, counters_[e.counter.index()]->take());
      statistics_.guessed += taken.guessed;
      const bool late = e.wants_overflow && by_[i] == Counter::host && taken.events >= e.distance;
      if (late) overshot(e, taken.guessed == 0 ? taken.events : 0);
      deltas[e.counter] += taken.events;
    }
    e.distance -= std::min(deltas[e.counter], e.distance - 1);
  }
  return deltas;
}

/// The kick was for an overflow margin_of() before this one.
void PerfSource::overshot(const PlanEntry& entry, std::uint64_t events) {
  ++statistics_.overshoots;
  if (events == 0) return;
  std::uint64_t& margin = is_clock(entry.counts) ? margins_.margin_cycles : margins_.margin_instructions;
  const std::uint64_t late = margin + (events - entry.distance);
  margin = std::min(late + late / 2, longest_margin);
}

void PerfSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.perf.windows", statistics_.windows);
  visit("pmu.perf.overshoots", statistics_.overshoots);
  visit("pmu.perf.guessed", statistics_.guessed);
  visit("pmu.perf.opened", statistics_.opened);
  visit("pmu.perf.margin", margins_.margin_instructions);
  visit("pmu.perf.margin_cycles", margins_.margin_cycles);
  for (const auto& [code, count] : statistics_.by_engine) visit(fmt::format("pmu.perf.by_engine.r{:04x}", code), count);
  for (const auto& [code, count] : statistics_.refused) visit(fmt::format("pmu.perf.refused.r{:04x}", code), count);
  exact_->visit_statistics(visit);
}

}  // namespace vmm
