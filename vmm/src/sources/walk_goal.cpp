#include "sources/walk_goal.hpp"

#include <bit>

namespace vmm {
namespace {

using vpmu::BranchKind;
using vpmu::HitLevel;

// An event with more conditions than branches and accesses may occur in any instruction; load latency is about loads.
void add_event(WalkGoal& goal, vpmu::Counts counts) {
  const vpmu::CountsDesc& desc = vpmu::describe(counts);
  const vpmu::AccessPattern& accesses = desc.accesses;
  const bool load = accesses.loads || counts == vpmu::Counts::load_latency;
  goal.branches |= desc.branches.kinds;
  if (desc.more != nullptr || (desc.branches.kinds.empty() && !load && !accesses.stores)) {
    goal.any = true;
    return;
  }
  (accesses.only_locked ? goal.locked_load : goal.load) |= load;
  goal.store |= accesses.stores;
}

/// The nearest level at which a load of this event can have found its data; unknown if any level will do.
HitLevel level_of(const vpmu::AccessPattern& accesses) {
  return accesses.loads ? static_cast<HitLevel>(std::countr_zero(accesses.levels)) : HitLevel::unknown;
}

}  // namespace

WalkGoal goal_of(const vpmu::CountPlan& plan) {
  WalkGoal goal;
  for (const vpmu::PlanEntry& e : plan.active()) {
    if (!e.armed) continue;
    goal.usr = goal.usr || e.usr;
    goal.os = goal.os || e.os;
    if (e.per_cycle)
      goal.any = true;  // forms with CMASK, INV or EDGE trigger at any retirement (rule P18)
    else
      add_event(goal, e.counts);
  }
  return goal;
}

void state_outcome(const vpmu::CountPlan& plan, vpmu::Retirement& r) {
  for (const vpmu::PlanEntry& e : plan.active()) {
    if (!e.armed || !(r.cpl == 0 ? e.os : e.usr)) continue;
    const vpmu::CountsDesc& desc = vpmu::describe(e.counts);
    const auto miss = [&](vpmu::MemAccess& access, bool is_there) {
      if (desc.accesses.tlb == vpmu::TlbMiss::first) access.dtlb_miss = is_there;
      if (desc.accesses.tlb == vpmu::TlbMiss::both) access.stlb_miss = is_there;
    };
    if (r.has_load && r.load.level == HitLevel::unknown) r.load.level = level_of(desc.accesses);
    if (desc.accesses.loads) miss(r.load, r.has_load);
    if (desc.accesses.stores) miss(r.store, r.has_store);
    if (desc.branches.only_mispredicted) r.branch.mispredicted = r.branch.kind != BranchKind::none;
  }
}

}  // namespace vmm
