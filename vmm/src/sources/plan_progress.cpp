#include "sources/plan_progress.hpp"

#include <algorithm>

#include "vpmu/counts.hpp"

namespace vmm {

using vpmu::Counts;

// Each instruction counts as one cycle and as one micro-operation.
PlanProgress::Unit PlanProgress::unit_of(const vpmu::PlanEntry& entry) {
  const bool picked_by_pmu = entry.counts == Counts::load_latency && !entry.latency_over;
  if (entry.armed || picked_by_pmu) return Unit::each;
  switch (vpmu::describe(entry.counts).tally) {
    case vpmu::Tally::zero: return Unit::nothing;
    case vpmu::Tally::instructions: return Unit::instructions;
    case vpmu::Tally::branches: return Unit::branches;
    case vpmu::Tally::near_branches: return Unit::near_branches;
    case vpmu::Tally::loads: return Unit::loads;
    case vpmu::Tally::stores: return Unit::stores;
    case vpmu::Tally::none: break;
  }
  return vpmu::uarch::ProcessorModel::has(entry.counts) ? Unit::model : Unit::each;
}

// If only some instructions have an event, at most one each, then EDGE, and INV with a CMASK of 1, depend on the order.
PlanProgress::Way PlanProgress::way_of(const vpmu::PlanEntry& entry) {
  const Unit unit = unit_of(entry);
  if (!entry.per_cycle || unit == Unit::each || entry.counts == Counts::unmodelled) return {unit, Form::plain};
  if (vpmu::describe(entry.counts).told_by == vpmu::ToldBy::clock) return {unit, Form::clock};
  if (unit == Unit::instructions) return {unit, Form::every_cycle};
  if (unit == Unit::nothing) return {unit, Form::no_events};
  const bool at_most_one = unit != Unit::model || vpmu::describe(entry.counts).most == 1;
  if (at_most_one && entry.spec.cmask > 1) return {unit, Form::no_events};
  if (at_most_one && !entry.spec.edge && !entry.spec.inv) return {unit, Form::plain};
  return {Unit::each, Form::plain};
}

void PlanProgress::begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model) {
  plan_ = plan;
  model_ = model;
  for (unsigned i = 0; i < plan.size; ++i) ways_[i] = way_of(plan.entries[i]);
  take_modelled();
}

std::uint64_t PlanProgress::unseen(bool user, std::uint64_t most) const {
  for (unsigned i = 0; i < plan_.size; ++i) {
    const vpmu::PlanEntry& e = plan_.entries[i];
    if (!(user ? e.usr : e.os)) continue;
    if (ways_[i].unit == Unit::each) return 0;
    const std::uint64_t each = ways_[i].unit == Unit::model ? std::uint64_t{vpmu::describe(e.counts).most} : 1;
    if (ways_[i].unit != Unit::nothing || ways_[i].form != Form::plain) most = std::min(most, (e.distance - 1) / each);
  }
  return most;
}

/// What the model has counted since the last call.
PlanProgress::ModelCounts PlanProgress::take_modelled() {
  ModelCounts since{};
  for (unsigned i = 0; i < plan_.size; ++i)
    if (ways_[i].unit == Unit::model) {
      const std::uint64_t now = model_->count(plan_.entries[i]);
      since[i] = now - std::exchange(modelled_[i], now);
    }
  return since;
}

/// Counts `cycles` instructions, one cycle each, by the counter's CMASK, INV and EDGE. Instructions at a filtered-out
/// privilege level only advance the counter's cycle state.
std::uint64_t PlanProgress::count_cycles(unsigned i, bool counts, std::uint64_t cycles) {
  vpmu::PlanEntry& e = plan_.entries[i];
  if (!counts) {
    e.cycle.pass(e.spec, cycles);
    return 0;
  }
  if (ways_[i].form == Form::clock) return e.cycle.tick(e.spec, cycles);
  return e.cycle.retire_many(e.spec, ways_[i].form == Form::every_cycle ? 1 : 0, cycles);
}

/// The number of such events in whole blocks. Blocks contain near branches only.
std::uint64_t PlanProgress::events_of(Unit unit, const vpmu::exec::Passed& passed) {
  switch (unit) {
    case Unit::instructions: return passed.instructions;
    case Unit::branches:
    case Unit::near_branches: return passed.branches;
    case Unit::loads: return passed.loads;
    case Unit::stores: return passed.stores;
    case Unit::model:
    case Unit::nothing:
    case Unit::each: break;
  }
  return 0;
}

void PlanProgress::pass(bool user, const vpmu::exec::Passed& passed) {
  const ModelCounts modelled = take_modelled();
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    const bool counts = user ? e.usr : e.os;
    const Way way = ways_[i];
    std::uint64_t events = 0;
    if (way.form != Form::plain) {
      events = count_cycles(i, counts, passed.instructions);
      deltas_.cycle[e.counter.number()] = e.cycle;
    } else if (counts) {
      events = way.unit == Unit::model ? modelled[i] : events_of(way.unit, passed);
    } else if (e.per_cycle) {
      deltas_.filtered_cycles[e.counter.number()] += passed.instructions;
    }
    deltas_[e.counter] += events;
    e.distance -= std::min(events, e.distance - 1);
  }
}

/// Whether the instruction is such an event.
bool PlanProgress::is_one(Unit unit, const vpmu::Retirement& r) {
  const vpmu::BranchKind branch = r.branch.kind;
  switch (unit) {
    case Unit::instructions: return true;
    case Unit::branches: return branch != vpmu::BranchKind::none;
    case Unit::near_branches: return branch != vpmu::BranchKind::none && branch != vpmu::BranchKind::far;
    case Unit::loads: return r.has_load;
    case Unit::stores: return r.has_store;
    case Unit::model:
    case Unit::nothing:
    case Unit::each: break;
  }
  return false;
}

// The PMU itself counts an observed retirement and its cycles, so no deltas are reported for it.
void PlanProgress::observe(const vpmu::Retirement& r) {
  const ModelCounts modelled = take_modelled();
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    const bool counts = r.cpl != 0 ? e.usr : e.os;
    const Way way = ways_[i];
    std::uint64_t events = 0;
    if (way.form != Form::plain)
      events = count_cycles(i, counts, r.cycles);
    else if (counts)
      events = way.unit == Unit::model ? modelled[i] : static_cast<std::uint64_t>(is_one(way.unit, r));
    e.distance -= std::min(events, e.distance - 1);
  }
}

}  // namespace vmm
