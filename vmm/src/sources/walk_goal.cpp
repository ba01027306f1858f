#include "sources/walk_goal.hpp"

#include <array>

namespace vmm {
namespace {

using vpmu::BranchKind;
using vpmu::Counts;
using vpmu::HitLevel;

constexpr auto conditional = BranchKinds::of(BranchKind::conditional);
constexpr auto calls = BranchKinds::of(BranchKind::near_rel_call, BranchKind::near_ind_call);
constexpr auto returns = BranchKinds::of(BranchKind::near_ret);
constexpr auto far_branches = BranchKinds::of(BranchKind::far);
constexpr auto near_branches =
    BranchKinds::of(BranchKind::conditional, BranchKind::near_rel_call, BranchKind::near_ind_call, BranchKind::near_ret,
                    BranchKind::near_ind_jmp, BranchKind::near_rel_jmp);

void add_event(WalkGoal& goal, Counts counts) {
  switch (counts) {
    case Counts::loads:
    case Counts::memory_instructions:
    case Counts::split_loads:
    case Counts::dtlb_miss_loads:
    case Counts::stlb_miss_loads:
    case Counts::l1_hit:
    case Counts::l1_miss:
    case Counts::lfb_hit:
    case Counts::l2_hit:
    case Counts::l2_miss:
    case Counts::l3_hit:
    case Counts::l3_hit_unshared:
    case Counts::l3_hit_shared:
    case Counts::l3_hit_modified:
    case Counts::l3_hit_other_core:
    case Counts::l3_miss:
    case Counts::load_latency: goal.load = true; break;
    case Counts::locked_loads: goal.locked_load = true; break;
    case Counts::stores:
    case Counts::split_stores:
    case Counts::dtlb_miss_stores:
    case Counts::stlb_miss_stores: goal.store = true; break;
    case Counts::branches:
    case Counts::mispredicts:
      goal.branches |= near_branches;
      goal.branches |= far_branches;
      break;
    case Counts::branches_near:
    case Counts::branches_taken:
    case Counts::mispredicts_taken: goal.branches |= near_branches; break;
    case Counts::branches_not_taken:
    case Counts::branches_conditional:
    case Counts::mispredicts_not_taken:
    case Counts::mispredicts_conditional: goal.branches |= conditional; break;
    case Counts::branches_call:
    case Counts::mispredicts_call: goal.branches |= calls; break;
    case Counts::mispredicts_return:
    case Counts::branches_return: goal.branches |= returns; break;
    case Counts::branches_far: goal.branches |= far_branches; break;
    case Counts::unmodelled:
    case Counts::cycles:
    case Counts::ref_cycles:
    case Counts::bus_cycles:
    case Counts::instructions:
    case Counts::uops_retired:
    case Counts::uops_issued:
    case Counts::uncached_loads:
    case Counts::itlb_misses:
    case Counts::nops:
    case Counts::x87_operations:
    case Counts::mmx:
    case Counts::sse_packed_single:
    case Counts::sse_scalar_single:
    case Counts::sse_packed_double:
    case Counts::sse_scalar_double:
    case Counts::sse_integer:
    case Counts::macro_fused:
    case Counts::never:
    case Counts::llc_references:
    case Counts::llc_misses:
    case Counts::l1d_fills:
    case Counts::l1i_misses:
    case Counts::itlb_stlb_hits:
    case Counts::itlb_walks:
    case Counts::frontend:
    case Counts::offcore:
    case Counts::offcore_1: goal.any = true; break;
  }
}

struct CountsAndLevel {
  Counts counts;
  HitLevel level;
};
constexpr std::array hit_levels{CountsAndLevel{Counts::l1_hit, HitLevel::l1},
                                CountsAndLevel{Counts::lfb_hit, HitLevel::lfb},
                                CountsAndLevel{Counts::l1_miss, HitLevel::l2},
                                CountsAndLevel{Counts::l2_hit, HitLevel::l2},
                                CountsAndLevel{Counts::l2_miss, HitLevel::l3},
                                CountsAndLevel{Counts::l3_hit, HitLevel::l3},
                                CountsAndLevel{Counts::l3_miss, HitLevel::dram},
                                CountsAndLevel{Counts::l3_hit_unshared, HitLevel::l3},
                                CountsAndLevel{Counts::l3_hit_shared, HitLevel::l3_shared},
                                CountsAndLevel{Counts::l3_hit_modified, HitLevel::l3_modified},
                                CountsAndLevel{Counts::l3_hit_other_core, HitLevel::l3_shared}};

/// The nearest place at which a load of this event can have found its data.
HitLevel level_of(Counts counts) {
  for (const CountsAndLevel& row : hit_levels)
    if (row.counts == counts) return row.level;
  return HitLevel::unknown;
}

bool is_mispredict(Counts counts) {
  return counts == Counts::mispredicts || counts == Counts::mispredicts_conditional ||
         counts == Counts::mispredicts_taken || counts == Counts::mispredicts_not_taken ||
         counts == Counts::mispredicts_call || counts == Counts::mispredicts_return;
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
    if (r.has_load && r.load.level == HitLevel::unknown) r.load.level = level_of(e.counts);
    if (e.counts == Counts::dtlb_miss_loads) r.load.dtlb_miss = r.has_load;
    if (e.counts == Counts::dtlb_miss_stores) r.store.dtlb_miss = r.has_store;
    if (e.counts == Counts::stlb_miss_loads) r.load.stlb_miss = r.has_load;
    if (e.counts == Counts::stlb_miss_stores) r.store.stlb_miss = r.has_store;
    if (is_mispredict(e.counts)) r.branch.mispredicted = r.branch.kind != BranchKind::none;
  }
}

}  // namespace vmm
