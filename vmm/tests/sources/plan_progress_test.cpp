#include "sources/plan_progress.hpp"

#include <gtest/gtest.h>

#include "uarch/profiles.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using vpmu::PlanEntry;

constexpr std::uint64_t far = 1'000'000;

vpmu::CountPlan plan_of(std::initializer_list<PlanEntry> entries) {
  vpmu::CountPlan plan;
  for (const PlanEntry& e : entries) plan.entries[plan.size++] = e;
  return plan;
}

PlanEntry entry(unsigned gp, Counts counts, std::uint64_t distance = far) {
  return {.counter = vpmu::CounterId::gp(gp), .counts = counts, .usr = true, .distance = distance};
}

PlanProgress at_the_start_of(const vpmu::CountPlan& plan) {
  PlanProgress progress;
  progress.begin(plan, nullptr);
  return progress;
}

TEST(PlanProgress, NothingToCountLetsAllPass) {
  EXPECT_FALSE(at_the_start_of({}).is_counting());
  EXPECT_EQ(at_the_start_of({}).unseen(true, 500), 500U);
  EXPECT_TRUE(at_the_start_of({.branches_wanted = true}).is_counting());
  EXPECT_EQ(at_the_start_of({.branches_wanted = true}).unseen(true, 500), 500U) << "in bulk";
}

// The instruction that overflows must be observed: unseen() may only pass one event less than are left.
TEST(PlanProgress, StopsBeforeTheNearestOverflow) {
  const PlanProgress progress =
      at_the_start_of(plan_of({entry(0, Counts::instructions, 100), entry(1, Counts::branches, 40)}));
  EXPECT_EQ(progress.unseen(true, 500), 39U);
  EXPECT_EQ(progress.unseen(true, 10), 10U);
  EXPECT_EQ(progress.unseen(false, 500), 500U) << "user mode only";
}

TEST(PlanProgress, WhatBlocksDoNotTellIsSeenOneByOne) {
  PlanEntry armed = entry(0, Counts::instructions), rising = entry(0, Counts::branches),
            picked = entry(0, Counts::load_latency);
  armed.armed = rising.per_cycle = rising.spec.edge = true;
  for (const PlanEntry& e : {armed, rising, picked, entry(0, Counts::memory_instructions)})
    EXPECT_EQ(at_the_start_of(plan_of({e})).unseen(true, 500), 0U) << static_cast<unsigned>(e.counts);
}

TEST(PlanProgress, BlocksGiveEachCounterItsOwn) {
  PlanProgress progress = at_the_start_of(plan_of({entry(0, Counts::instructions, 100), entry(1, Counts::branches),
                                                   entry(2, Counts::loads), entry(3, Counts::stores)}));
  progress.pass(true, {.instructions = 10, .branches = 2, .loads = 3, .stores = 4});
  progress.pass(false, {.instructions = 50, .branches = 50, .loads = 50, .stores = 50});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  const std::array expected{10U, 2U, 3U, 4U};
  for (unsigned i = 0; i < expected.size(); ++i) EXPECT_EQ(deltas[vpmu::CounterId::gp(i)], expected[i]) << i;
  EXPECT_EQ(progress.unseen(true, 500), 89U);
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 0U) << "taken";
}

// An observed retirement reduces the distance, but is no delta: the PMU itself counts it.
TEST(PlanProgress, ARetirementComesNearerAndIsNoDelta) {
  PlanProgress progress = at_the_start_of(plan_of({entry(0, Counts::loads, 3)}));
  progress.observe({.cpl = 3, .has_load = true});
  progress.observe({.cpl = 3, .has_store = true});
  progress.observe({.cpl = 0, .has_load = true});
  EXPECT_EQ(progress.unseen(true, 500), 1U);
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 0U);
}

// Blocks contain near branches only; far branches are observed one by one.
TEST(PlanProgress, NearBranchesPassInBlocks) {
  PlanProgress progress = at_the_start_of(plan_of({entry(0, Counts::branches_near, 100)}));
  progress.pass(true, {.instructions = 10, .branches = 7});
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 7U);
  progress.observe({.cpl = 3, .branch = {.kind = vpmu::BranchKind::far, .taken = true}});
  EXPECT_EQ(progress.unseen(true, 500), 92U);
  progress.observe({.cpl = 3, .branch = {.kind = vpmu::BranchKind::near_ret, .taken = true}});
  EXPECT_EQ(progress.unseen(true, 500), 91U);
}

// Branches of single kinds pass in blocks, too.
TEST(PlanProgress, TakesTheBranchesThatTheModelSaw) {
  vpmu::uarch::ProcessorModel model{*vpmu::uarch::find_profile("skylake")};
  constexpr std::array kinds{Counts::branches_taken, Counts::branches_not_taken, Counts::branches_conditional,
                             Counts::branches_call, Counts::branches_return};
  vpmu::CountPlan plan;
  for (unsigned i = 0; i < kinds.size(); ++i) plan.entries[plan.size++] = entry(i, kinds[i], 100);
  EXPECT_TRUE(vpmu::uarch::ProcessorModel::is_wanted(plan));
  PlanProgress progress;
  progress.begin(plan, &model);
  EXPECT_EQ(progress.unseen(true, 500), 99U);
  using enum vpmu::BranchKind;
  for (const vpmu::BranchKind kind : {conditional, near_rel_call, near_ind_call, near_ret, near_rel_jmp, far})
    model.branched({.at = 16, .behind = 20, .to = 64, .kind = kind, .taken = true});
  model.branched({.at = 16, .behind = 20, .to = 20, .kind = conditional, .taken = false});
  progress.pass(true, {.instructions = 7, .branches = 7});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  constexpr std::array expected{5U, 1U, 2U, 2U, 1U};
  for (unsigned i = 0; i < kinds.size(); ++i) EXPECT_EQ(deltas[vpmu::CounterId::gp(i)], expected[i]) << i;
  EXPECT_EQ(progress.unseen(true, 500), 94U);
}

// Rule L2: in bulk as well.
TEST(PlanProgress, TakesWhatTheModelCounted) {
  vpmu::uarch::ProcessorModel model{*vpmu::uarch::find_profile("skylake")};
  PlanEntry slow = entry(0, Counts::load_latency, 100);
  slow.latency_over = 30;
  const vpmu::CountPlan plan = plan_of({slow, entry(1, Counts::l1_hit)});
  const auto load = [&](std::uint64_t at) {
    model.accessed({.linear = at, .physical = at, .page_bytes = 4096, .bytes = 8}, 0);
    model.retired(true, false);
  };
  model.follow(plan);
  load(0x8000);  // before the plan
  PlanProgress progress;
  progress.begin(plan, &model);
  for (const std::uint64_t at : {0x1000U, 0x2000U, 0x8000U}) load(at);
  progress.pass(true, {.instructions = 3, .loads = 3});
  vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[vpmu::CounterId::gp(0)], 3U) << "two from memory, and one whose fill is in flight";
  EXPECT_EQ(deltas[vpmu::CounterId::gp(1)], 0U);
  EXPECT_EQ(progress.unseen(true, 500), 96U);
  load(0x3000);
  progress.observe({.cpl = 3, .has_load = true});
  EXPECT_EQ(progress.unseen(true, 500), 95U);
  progress.pass(true, {});
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 0U) << "the observed one is the PMU's";
}

}  // namespace
}  // namespace vmm
