#include "sources/plan_progress.hpp"

#include <algorithm>
#include <utility>

namespace vmm {

using vpmu::Counts;

// A cycle is an instruction here, and so is a micro-operation.
PlanProgress::Unit PlanProgress::unit_of(const vpmu::PlanEntry& entry) {
  constexpr std::array rows{std::pair{Counts::instructions, Unit::instructions},
                            std::pair{Counts::cycles, Unit::instructions},
                            std::pair{Counts::ref_cycles, Unit::instructions},
                            std::pair{Counts::bus_cycles, Unit::instructions},
                            std::pair{Counts::uops_retired, Unit::instructions},
                            std::pair{Counts::uops_issued, Unit::instructions},
                            std::pair{Counts::branches, Unit::branches},
                            std::pair{Counts::branches_near, Unit::near_branches},
                            std::pair{Counts::loads, Unit::loads},
                            std::pair{Counts::stores, Unit::stores},
                            std::pair{Counts::unmodelled, Unit::nothing},
                            std::pair{Counts::never, Unit::nothing}};
  const bool picked_by_pmu = entry.counts == Counts::load_latency && !entry.latency_over;
  if (entry.per_cycle || entry.armed || picked_by_pmu) return Unit::each;
  for (const auto& [counts, unit] : rows)
    if (counts == entry.counts) return unit;
  return vpmu::uarch::ProcessorModel::has(entry.counts) ? Unit::model : Unit::each;
}

void PlanProgress::begin(const vpmu::CountPlan& plan, const vpmu::uarch::ProcessorModel* model) {
  plan_ = plan;
  model_ = model;
  for (unsigned i = 0; i < plan.size; ++i) units_[i] = plan.branches_stored ? Unit::each : unit_of(plan.entries[i]);
  take_modelled();
}

std::uint64_t PlanProgress::unseen(bool user, std::uint64_t most) const {
  if (plan_.branches_stored) return 0;
  for (unsigned i = 0; i < plan_.size; ++i) {
    const vpmu::PlanEntry& e = plan_.entries[i];
    if (!(user ? e.usr : e.os)) continue;
    if (units_[i] == Unit::each) return 0;
    const std::uint64_t each =
        units_[i] == Unit::model ? vpmu::uarch::ProcessorModel::most_per_instruction(e.counts) : 1;
    if (units_[i] != Unit::nothing) most = std::min(most, (e.distance - 1) / each);
  }
  return most;
}

/// What the model has counted since the last time.
PlanProgress::ModelCounts PlanProgress::take_modelled() {
  ModelCounts since{};
  for (unsigned i = 0; i < plan_.size; ++i)
    if (units_[i] == Unit::model) {
      const std::uint64_t now = model_->count(plan_.entries[i]);
      since[i] = now - std::exchange(modelled_[i], now);
    }
  return since;
}

void PlanProgress::pass(bool user, const vpmu::exec::Passed& passed) {
  const ModelCounts modelled = take_modelled();
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    if (!(user ? e.usr : e.os)) continue;
    std::uint64_t events = 0;
    switch (units_[i]) {
      case Unit::instructions: events = passed.instructions; break;
      case Unit::branches:
      case Unit::near_branches: events = passed.branches; break;  // blocks have no other branches
      case Unit::loads: events = passed.loads; break;
      case Unit::stores: events = passed.stores; break;
      case Unit::model: events = modelled[i]; break;
      case Unit::nothing:
      case Unit::each: break;
    }
    deltas_[e.counter] += events;
    e.distance -= std::min(events, e.distance - 1);
  }
}

void PlanProgress::observe(const vpmu::Retirement& r) {
  const ModelCounts modelled = take_modelled();
  for (unsigned i = 0; i < plan_.size; ++i) {
    vpmu::PlanEntry& e = plan_.entries[i];
    if (!(r.cpl != 0 ? e.usr : e.os)) continue;
    const bool branch = r.branch.kind != vpmu::BranchKind::none,
               near = branch && r.branch.kind != vpmu::BranchKind::far;
    const bool counts = units_[i] == Unit::instructions || (units_[i] == Unit::branches && branch) ||
                        (units_[i] == Unit::near_branches && near) || (units_[i] == Unit::loads && r.has_load) ||
                        (units_[i] == Unit::stores && r.has_store);
    e.distance -= std::min(e.distance - 1, units_[i] == Unit::model ? modelled[i] : static_cast<std::uint64_t>(counts));
  }
}

}  // namespace vmm
