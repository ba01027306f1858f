#include "sources/plan_progress.hpp"

#include <algorithm>
#include <span>

#include "vpmu/counts.hpp"

namespace vmm {

using vpmu::Counts;

namespace {

/// The classes that the entry counts.
vpmu::InstructionPattern classes_of(const vpmu::PlanEntry& entry) {
  vpmu::InstructionPattern pattern;
  for (const Counts counts : entry.what()) pattern = pattern | vpmu::describe(counts).instructions;
  return pattern;
}

/// The most events in one cycle of a pipeline.
std::uint64_t most_in_a_cycle(const vpmu::PlanEntry& entry) {
  return entry.per_cycle ? 1 : vpmu::describe(entry.counts).max;
}

bool counts_classes(const vpmu::PlanEntry& entry) {
  return std::ranges::all_of(entry.what(), [](Counts c) { return vpmu::describe(c).tally == vpmu::Tally::classes; });
}

/// The most events of one instruction.
std::uint64_t max_of(const vpmu::PlanEntry& entry) {
  std::uint64_t max = 0;
  for (const Counts counts : entry.what()) max += vpmu::describe(counts).max;
  return counts_classes(entry) ? (classes_of(entry).twice == 0 ? 1 : 2) : max;
}

/// Whether a pipeline that tells these quantities counts it.
bool is_of_pipeline(const vpmu::PlanEntry& entry, vpmu::PipelineQuantities told) {
  const vpmu::PipelineQuantities of = vpmu::describe(entry.counts).pipeline.of;
  return !of.empty() && told.contains(of);
}

}  // namespace

bool PlanProgress::wants_classes(const vpmu::CountPlan& plan) {
  return std::ranges::any_of(plan.active(), counts_classes);
}

bool PlanProgress::wants_pipeline(const vpmu::CountPlan& plan, vpmu::PipelineQuantities told) {
  return std::ranges::any_of(plan.active(), [told](const vpmu::PlanEntry& e) { return is_of_pipeline(e, told); });
}

// Without a pipeline each instruction counts as one micro-operation.
PlanProgress::Unit PlanProgress::unit_of(const vpmu::PlanEntry& entry) const {
  if (is_of_pipeline(entry, pipeline_.quantities)) return Unit::pipeline;
  const bool picked_by_pmu = entry.counts == Counts::load_latency && !entry.latency_over;
  if (pipeline_.quantities.empty() && vpmu::needs_pipeline(entry.counts)) return Unit::nothing;
  if (entry.armed || picked_by_pmu) return Unit::each;
  switch (vpmu::describe(entry.counts).tally) {
    case vpmu::Tally::zero:
    case vpmu::Tally::pipeline: return Unit::nothing;
    case vpmu::Tally::cycles: return Unit::cycles;
    case vpmu::Tally::ref_cycles: return Unit::ref_cycles;
    case vpmu::Tally::instructions: return Unit::instructions;
    case vpmu::Tally::bus_clock: return Unit::bus_clock;
    case vpmu::Tally::bus_clock_alone: return Unit::bus_clock_alone;
    case vpmu::Tally::branches: return Unit::branches;
    case vpmu::Tally::near_branches: return Unit::near_branches;
    case vpmu::Tally::loads: return Unit::loads;
    case vpmu::Tally::stores: return Unit::stores;
    case vpmu::Tally::load_uops: return Unit::load_uops;
    case vpmu::Tally::store_uops: return Unit::store_uops;
    case vpmu::Tally::classes: return Unit::classes;
    case vpmu::Tally::none: break;
  }
  if (entry.counts == Counts::several && counts_classes(entry)) return Unit::classes;
  return vpmu::uarch::ProcessorModel::has(entry) ? Unit::model : Unit::each;
}

// If only some instructions have an event, at most one each, then EDGE, and INV with a CMASK of 1, depend on the order.
PlanProgress::Method PlanProgress::method_of(const vpmu::PlanEntry& entry) const {
  Unit unit = unit_of(entry);
  // The accesses of one instruction are in cycles of their own.
  if (entry.per_cycle && unit == Unit::load_uops) unit = Unit::loads;
  if (entry.per_cycle && unit == Unit::store_uops) unit = Unit::stores;
  const bool is_told =
      entry.counts != Counts::unmodelled && (unit == Unit::model || !vpmu::needs_pipeline(entry.counts));
  if (!entry.per_cycle || unit == Unit::each || unit == Unit::pipeline || !is_told) return {unit, Form::plain};
  if (unit == Unit::cycles || unit == Unit::ref_cycles) return {unit, Form::clock};
  if (unit == Unit::instructions) return {unit, Form::retired};
  if (unit == Unit::nothing) return {unit, Form::no_events};
  const bool at_most_one = (unit != Unit::model && unit != Unit::classes) || max_of(entry) == 1;
  if (at_most_one && entry.spec.cmask > 1) return {unit, Form::no_events};
  if (at_most_one && !entry.spec.edge && !entry.spec.inv) return {unit, Form::plain};
  return {Unit::each, Form::plain};
}

void PlanProgress::begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model,
                         const UnhaltedClocks& clocks, const vpmu::exec::ClassCounts* classes, PipelineTold pipeline) {
  plan_ = plan;
  model_ = model;
  clocks_ = &clocks;
  classes_ = classes;
  beside_ = clocks;
  pipeline_ = std::move(pipeline);
  has_pipeline_ = wants_pipeline(plan, pipeline_.quantities);
  for (unsigned i = 0; i < plan.size; ++i) methods_[i] = method_of(plan.entries[i]);
  elsewhere_ = {};
  take_elsewhere();
}

std::uint64_t PlanProgress::unseen(bool user, std::uint64_t max, const MaxCycles& cycles) const {
  const auto in_cycles = [&cycles](std::uint64_t most) {
    const std::uint64_t instructions = most / cycles.of_each;
    return instructions - std::min(instructions, cycles.open);
  };
  for (unsigned i = 0; i < plan_.size; ++i) {
    const vpmu::PlanEntry& e = plan_.entries[i];
    if (!(user ? e.usr : e.os)) continue;
    if (methods_[i].unit == Unit::each || e.armed) return 0;
    if (vpmu::is_bus_clock(e.counts) && methods_[i].form == Form::plain) {
      max = std::min(max, in_cycles(clocks_->cycles_before_bus(e.distance)));
      continue;
    }
    if (counts_cycles(methods_[i])) {
      const bool of_tsc = methods_[i].unit == Unit::ref_cycles;
      max = std::min(max, in_cycles(of_tsc ? clocks_->cycles_before_ref(e.distance) : e.distance - 1));
      continue;
    }
    // A pipeline tells what has retired when a part of the code ends: an overflow in the part that has begun comes at
    // its end. That is soon enough for an interrupt. A record is of an instruction behind it in any case.
    if (methods_[i].unit == Unit::pipeline) {
      max = std::min(max, in_cycles((e.distance - 1) / most_in_a_cycle(e)));
      continue;
    }
    const bool elsewhere = is_elsewhere(methods_[i].unit);
    const std::uint64_t each = elsewhere ? max_of(e) : 1;
    // The other half is for what unseen_accesses() lets pass.
    const std::uint64_t parts = counts_accesses(methods_[i]) ? 2 : 1;
    // The record may be of the overflowing instruction itself (rule D2), and that may be a pair's second.
    const bool may_be_of_pair = e.precise && methods_[i].unit == Unit::instructions && !pipeline_.quantities.empty();
    const std::uint64_t seen = std::min<std::uint64_t>(e.distance, may_be_of_pair ? 2 : 1);
    if (methods_[i].unit != Unit::nothing || methods_[i].form != Form::plain)
      max = std::min(max, (e.distance - seen) / each / parts);
  }
  return max;
}

std::uint64_t PlanProgress::unseen_accesses(bool user) const {
  std::uint64_t max = vpmu::exec::MoreAccesses::unlimited;
  for (unsigned i = 0; i < plan_.size; ++i) {
    const vpmu::PlanEntry& e = plan_.entries[i];
    if (counts_accesses(methods_[i]) && (user ? e.usr : e.os)) max = std::min(max, (e.distance - 1) / 2);
  }
  return max;
}

std::uint64_t PlanProgress::counted_elsewhere(unsigned i, const vpmu::PipelineTotals& totals) const {
  const vpmu::PlanEntry& e = plan_.entries[i];
  if (methods_[i].unit == Unit::model) return model_->count(e);
  if (methods_[i].unit == Unit::classes) return classes_of(e).sum(*classes_);
  return vpmu::pipeline_count(vpmu::describe(e.counts).pipeline, e.spec, totals);
}

/// What the model and the pipeline have counted since the last call, and which classes the engine has.
PlanProgress::Elsewhere PlanProgress::take_elsewhere() {
  Elsewhere since{};
  vpmu::PipelineTotals totals;
  if (has_pipeline_) totals = pipeline_.totals();
  for (unsigned i = 0; i < plan_.size; ++i) {
    if (!is_elsewhere(methods_[i].unit)) continue;
    const std::uint64_t now = counted_elsewhere(i, totals);
    // A part's micro-ops are told when it retires, and are issued before: for a moment there may be more cycles with
    // some than have passed, and fewer without any than there were.
    since[i] = now - std::min(now, elsewhere_[i]);
    elsewhere_[i] = std::max(now, elsewhere_[i]);
  }
  return since;
}

namespace {

/// So many instructions retired in so many cycles: as many in each as come out even, or, if there are more cycles, as
/// many as can retire in one, until all have.
std::uint64_t retire_evenly(vpmu::CycleCondition& condition, const vpmu::EventSpec& spec, std::uint64_t instructions,
                            std::uint64_t cycles) {
  constexpr std::uint64_t retired_in_a_cycle = 4;
  if (instructions == 0 || instructions == cycles)
    return condition.retire_many(spec, instructions != 0 ? 1 : 0, cycles);
  if (cycles == 0) return condition.retire(spec, instructions, 0);
  const bool waits = instructions < cycles;
  const std::uint64_t in_each = waits ? std::min(instructions, retired_in_a_cycle) : instructions / cycles;
  const std::uint64_t with_more = waits ? 0 : instructions % cycles;
  const std::uint64_t full = waits ? instructions / in_each : cycles - with_more;
  const std::uint64_t rest = waits ? instructions % in_each : 0;
  std::uint64_t counted = condition.retire_many(spec, in_each, full);
  counted += condition.retire_many(spec, in_each + 1, with_more);
  if (rest != 0) counted += condition.retire(spec, rest, 1);
  return counted + condition.retire_many(spec, 0, waits ? cycles - full - (rest != 0 ? 1 : 0) : 0);
}

}  // namespace

/// Counts what passed by the counter's CMASK, INV and EDGE. What passed at a filtered-out privilege level only advances
/// the counter's cycle state.
std::uint64_t PlanProgress::count_cycles(unsigned i, bool counts, std::uint64_t instructions, std::uint64_t cycles) {
  vpmu::PlanEntry& e = plan_.entries[i];
  if (!counts) {
    e.cycle.pass(e.spec, cycles);
    return 0;
  }
  switch (methods_[i].form) {
    case Form::clock: return e.cycle.tick(e.spec, cycles);
    case Form::retired: return retire_evenly(e.cycle, e.spec, instructions, cycles);
    case Form::no_events:
    case Form::plain: break;
  }
  return e.cycle.retire_many(e.spec, 0, cycles);
}

/// The number of such events in whole blocks. Blocks contain near branches only.
std::uint64_t PlanProgress::events_of(Unit unit, const vpmu::exec::Passed& passed, const Ticks& ticks) {
  switch (unit) {
    case Unit::instructions: return passed.instructions;
    case Unit::cycles: return ticks.cycles;
    case Unit::ref_cycles: return ticks.ref;
    case Unit::bus_clock: return ticks.bus;
    case Unit::bus_clock_alone: return ticks.alone ? ticks.bus : 0;
    case Unit::branches:
    case Unit::near_branches: return passed.branches;
    case Unit::loads: return passed.loads;
    case Unit::stores: return passed.stores;
    case Unit::load_uops: return passed.loads + static_cast<std::uint64_t>(passed.more_loads);
    case Unit::store_uops: return passed.stores + static_cast<std::uint64_t>(passed.more_stores);
    case Unit::classes:
    case Unit::model:
    case Unit::pipeline:
    case Unit::nothing:
    case Unit::each: break;
  }
  return 0;
}

void PlanProgress::pass(bool user, const vpmu::exec::Passed& passed, const Ticks& ticks) {
  pass(user, passed, ticks, take_elsewhere());
}

void PlanProgress::wait(bool user, const Ticks& ticks) { pass(user, {}, ticks, {}); }

// The PMU applies CMASK, INV and EDGE to what it is told of each instruction, and must know of all cycles before it.
bool PlanProgress::may_wait() const {
  for (unsigned i = 0; i < plan_.size; ++i)
    if (methods_[i].unit == Unit::each && plan_.entries[i].per_cycle) return false;
  return true;
}

// What a pipeline has told since the last call is of the level that runs now: pause() ends all that it has begun before
// the level changes, but for an interrupt's first instructions, which may get what the part before it had left.
void PlanProgress::pass(bool user, const vpmu::exec::Passed& passed, const Ticks& ticks, const Elsewhere& elsewhere) {
  ran_user_ = user;
  for (unsigned i = 0; i < plan_.size; ++i) {
    const vpmu::PlanEntry& e = plan_.entries[i];
    const bool counts = user ? e.usr : e.os;
    const Method method = methods_[i];
    std::uint64_t events = 0;
    if (method.form != Form::plain) {
      events = count_cycles(i, counts, passed.instructions, ticks.cycles);
      deltas_.cycle[e.counter.number()] = e.cycle;
    } else if (counts) {
      events = is_elsewhere(method.unit) ? elsewhere[i] : events_of(method.unit, passed, ticks);
    } else if (e.per_cycle && method.unit != Unit::pipeline) {
      deltas_.filtered_cycles[e.counter.number()] += ticks.cycles;
    }
    give(i, events);
  }
}

/// The counter gets so many events.
void PlanProgress::give(unsigned i, std::uint64_t events) {
  vpmu::PlanEntry& e = plan_.entries[i];
  deltas_[e.counter] += events;
  if (methods_[i].unit == Unit::pipeline) deltas_.by_pipeline.add(e.counter);
  e.distance -= std::min(events, e.distance - 1);
}

/// What the other thread adds to a counter with CMASK, in `alone` cycles of its own and `both` in which each thread has
/// an instruction. With EDGE or INV, or for one privilege level, the cycles of both threads would have to be put in
/// order: these forms count the own thread's.
std::uint64_t PlanProgress::cycles_beside(const vpmu::PlanEntry& e, Form form, std::uint64_t alone,
                                          std::uint64_t both) {
  const bool needs_order = e.spec.edge || e.spec.inv || !e.os || !e.usr;
  if (needs_order || (form != Form::retired && form != Form::clock)) return 0;
  if (e.spec.cmask <= 1) return alone;
  return form == Form::retired && e.spec.cmask == 2 ? both : 0;
}

// What both threads do at once is one cycle of the core. Each instruction is one micro-operation. What a pipeline tells
// is the own thread's.
void PlanProgress::pass_beside(const Sibling& sibling) {
  const Ticks in_os = beside_.pass(sibling.alone[0]), in_usr = beside_.pass(sibling.alone[1]);
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    if (!e.spec.any || methods_[i].unit == Unit::pipeline) continue;
    const auto of = [&e](std::uint64_t os, std::uint64_t usr) { return (e.os ? os : 0) + (e.usr ? usr : 0); };
    const std::uint64_t alone = of(sibling.alone[0], sibling.alone[1]);
    const std::uint64_t instructions = of(sibling.instructions[0], sibling.instructions[1]);
    std::uint64_t events = 0;
    if (e.per_cycle)
      events = cycles_beside(e, methods_[i].form, alone, instructions - alone);
    else if (vpmu::is_bus_clock(e.counts))
      events = of(in_os.bus, in_usr.bus);
    else if (vpmu::describe(e.counts).tally == vpmu::Tally::ref_cycles)
      events = of(in_os.ref, in_usr.ref);
    else if (vpmu::describe(e.counts).told_by == vpmu::ToldBy::clock)
      events = alone;
    else if (vpmu::describe(e.counts).tally == vpmu::Tally::instructions)
      events = instructions;
    deltas_[e.counter] += events;
    e.distance -= std::min(events, e.distance - 1);
  }
}

/// The number of such events of one instruction.
std::uint64_t PlanProgress::events_of(Unit unit, const vpmu::Retirement& r) {
  const vpmu::BranchKind branch = r.branch.kind;
  switch (unit) {
    case Unit::instructions: return r.instructions();
    case Unit::cycles: return r.cycles;
    case Unit::ref_cycles: return r.ref_cycles;
    case Unit::bus_clock: return r.bus_cycles;
    case Unit::bus_clock_alone: return r.alone ? r.bus_cycles : 0;
    case Unit::branches: return branch != vpmu::BranchKind::none ? 1 : 0;
    case Unit::near_branches: return branch != vpmu::BranchKind::none && branch != vpmu::BranchKind::far ? 1 : 0;
    case Unit::loads: return r.has_load ? 1 : 0;
    case Unit::stores: return r.has_store ? 1 : 0;
    case Unit::load_uops: return vpmu::describe(Counts::load_uops).of(r);
    case Unit::store_uops: return vpmu::describe(Counts::store_uops).of(r);
    case Unit::classes:
    case Unit::model:
    case Unit::pipeline:
    case Unit::nothing:
    case Unit::each: break;
  }
  return 0;
}

// The PMU itself counts an observed retirement and its cycles, so no deltas are reported for it, but for what a
// pipeline tells: the retirement says that (Retirement::has_pipeline).
void PlanProgress::observe(const vpmu::Retirement& r) {
  const Elsewhere elsewhere = take_elsewhere();
  ran_user_ = r.cpl != 0;
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    const bool counts = r.cpl != 0 ? e.usr : e.os;
    const Method method = methods_[i];
    std::uint64_t events = 0;
    if (method.form != Form::plain)
      events = count_cycles(i, counts, 1, r.cycles);
    else if (counts && method.unit == Unit::classes)
      events = classes_of(e).of_class(static_cast<unsigned>(r.kind));
    else if (counts)
      events = is_elsewhere(method.unit) ? elsewhere[i] : events_of(method.unit, r);
    if (method.unit == Unit::pipeline) {
      give(i, events);
      continue;
    }
    e.distance -= std::min(events, e.distance - 1);
  }
}

}  // namespace vmm
