#include "sources/plan_progress.hpp"

#include <gtest/gtest.h>

#include <array>

#include "uarch/profiles.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using vpmu::PlanEntry;

const UnhaltedClocks clocks{{}};
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
  progress.begin(plan, nullptr, clocks);
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

// With the pipeline's time an instruction may take many cycles, and so may those that have not been told yet.
TEST(PlanProgress, StopsBeforeTheCyclesThatOverflow) {
  const PlanProgress progress =
      at_the_start_of(plan_of({entry(0, Counts::cycles, 1000), entry(1, Counts::instructions, 500)}));
  EXPECT_EQ(progress.unseen(true, 900), 499U);
  EXPECT_EQ(progress.unseen(true, 900, {.of_each = 10}), 99U);
  EXPECT_EQ(progress.unseen(true, 900, {.of_each = 10, .open = 9}), 90U);
  EXPECT_EQ(progress.unseen(true, 900, {.of_each = 10, .open = 100}), 0U);
  EXPECT_EQ(progress.unseen(false, 900, {.of_each = 10, .open = 100}), 900U) << "user mode only";
}

// Rule C4: instructions retire four in a cycle, or as many as come out even.
TEST(PlanProgress, SpreadsInstructionsOverCycles) {
  const auto counted = [](const vpmu::EventSpec& spec, std::uint64_t instructions, std::uint64_t cycles) {
    PlanEntry e = entry(0, Counts::instructions);
    e.spec = spec;
    e.per_cycle = true;
    PlanProgress progress = at_the_start_of(plan_of({e}));
    progress.pass(true, {.instructions = 4}, {.cycles = 4});  // the first cycle counts when it ends
    (void)progress.take_deltas();
    progress.pass(true, {.instructions = instructions}, {.cycles = cycles});
    return progress.take_deltas()[vpmu::CounterId::gp(0)];
  };
  EXPECT_EQ(counted({.cmask = 4, .usr = true}, 8, 10), 2U);
  EXPECT_EQ(counted({.cmask = 1, .usr = true}, 9, 10), 3U);
  EXPECT_EQ(counted({.cmask = 1, .usr = true, .inv = true}, 9, 10), 6U) << "the last cycle has not ended";
  EXPECT_EQ(counted({.cmask = 3, .usr = true}, 8, 3), 2U) << "3, 3 and 2";
  EXPECT_EQ(counted({.cmask = 1, .usr = true}, 8, 8), 8U);
}

// A bus clock of 100 MHz beside a core of 2.5 GHz: the third tick ends with the 75th cycle, which must be observed.
TEST(PlanProgress, StopsBeforeTheTickOfTheBusClockThatOverflows) {
  UnhaltedClocks bus{{.khz = 100'000}};
  bus.follow(2'500'000);
  PlanProgress progress;
  progress.begin(plan_of({entry(0, Counts::bus_cycles, 3)}), nullptr, bus);
  EXPECT_EQ(progress.unseen(true, 500), 74U);
  EXPECT_EQ(progress.unseen(false, 500), 500U) << "user mode only";
  progress.pass(true, {.instructions = 74}, bus.pass(74));
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 2U);
  EXPECT_EQ(progress.unseen(true, 500), 0U);
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
  progress.pass(true, {.instructions = 10, .branches = 2, .loads = 3, .stores = 4}, {});
  progress.pass(false, {.instructions = 50, .branches = 50, .loads = 50, .stores = 50}, {});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  const std::array expected{10U, 2U, 3U, 4U};
  for (unsigned i = 0; i < expected.size(); ++i) EXPECT_EQ(deltas[vpmu::CounterId::gp(i)], expected[i]) << i;
  EXPECT_EQ(progress.unseen(true, 500), 89U);
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 0U) << "taken";
}

// What only a pipeline tells stays 0 without one, whatever its form: INV must not make cycles of it.
TEST(PlanProgress, NothingIsToldOfAPipelineThatIsNotThere) {
  PlanEntry inverted = entry(1, Counts::slots_not_delivered, 3);
  inverted.per_cycle = inverted.spec.inv = true;
  inverted.spec.cmask = 1;
  PlanEntry prefetches = entry(2, Counts::l2_prefetches, 3);
  prefetches.per_cycle = prefetches.spec.inv = true;
  prefetches.spec.cmask = 1;
  const vpmu::uarch::ProcessorModel model{*vpmu::uarch::find_profile("haswell")};
  PlanProgress progress;
  progress.begin(
      plan_of({entry(0, Counts::recovery_cycles, 3), inverted, prefetches, entry(3, Counts::data_walk_memory, 3)}),
      &model, clocks);
  EXPECT_EQ(progress.unseen(true, 500), 500U);
  progress.pass(true, {.instructions = 100}, {});
  progress.observe({.cpl = 3});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(deltas[vpmu::CounterId::gp(i)], 0U) << i;
}

/// A pipeline that tells these quantities, and has counted what the test says.
class PipelineProgress : public testing::Test {
 protected:
  using Q = vpmu::PipelineQuantity;
  PlanProgress at_the_start_of(std::initializer_list<PlanEntry> entries) {
    PlanProgress progress;
    progress.begin(plan_of(entries), nullptr, clocks, nullptr,
                   {.quantities = told, .totals = [this] { return totals; }});
    return progress;
  }
  static PlanEntry of_stalls(unsigned gp, std::uint64_t distance = far) {
    PlanEntry e = entry(gp, Counts::uops_issued, distance);
    e.per_cycle = e.spec.inv = true;
    e.spec.cmask = 1;
    return e;
  }
  /// So many cycles in which so many micro-ops are issued.
  void issue(std::uint64_t amount, std::uint64_t cycles) {
    totals[Q::issued].add(amount, cycles, true);
    totals.cycles += cycles;
  }
  static constexpr auto gp0 = vpmu::CounterId::gp(0), gp1 = vpmu::CounterId::gp(1);

  vpmu::PipelineQuantities told = vpmu::PipelineQuantities::of(Q::issued, Q::not_delivered);
  vpmu::PipelineTotals totals;
};

// Rule C4: each counter by its own CMASK and INV, from the plan's beginning on.
TEST_F(PipelineProgress, CountersGetWhatThePipelineCounted) {
  issue(4, 1000);
  PlanProgress progress = at_the_start_of({entry(0, Counts::uops_issued), of_stalls(1)});
  issue(4, 10);
  issue(0, 5);
  progress.pass(true, {.instructions = 33}, {.cycles = 15});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[gp0], 40U);
  EXPECT_EQ(deltas[gp1], 5U);
  EXPECT_TRUE(deltas.by_pipeline.has(gp0));
  EXPECT_FALSE(deltas.cycle[0].has_value()) << "the PMU's own condition has nothing to say";
  progress.pass(true, {.instructions = 7}, {.cycles = 9});
  EXPECT_EQ(progress.take_deltas()[gp0], 0U) << "no part of the code has ended";
}

// What an observed instruction has issued comes by the totals as well: its retirement has Retirement::has_pipeline.
TEST_F(PipelineProgress, AnObservedInstructionsCountsAreDeltas) {
  PlanProgress progress = at_the_start_of({entry(0, Counts::uops_issued, 10)});
  issue(3, 2);
  progress.observe({.cpl = 3});
  EXPECT_EQ(progress.take_deltas()[gp0], 6U);
  issue(3, 1);
  progress.wait(true, {.cycles = 1});
  EXPECT_EQ(progress.take_deltas()[gp0], 0U);
  progress.observe({.cpl = 3});
  EXPECT_EQ(progress.take_deltas()[gp0], 3U);
}

TEST_F(PipelineProgress, WhatIsToldIsOfTheLevelThatRuns) {
  PlanProgress progress = at_the_start_of({entry(0, Counts::uops_issued), of_stalls(1)});
  issue(0, 100);
  issue(2, 1);
  progress.pass(false, {.instructions = 1}, {.cycles = 101});
  issue(4, 2);
  issue(0, 3);
  progress.pass(true, {.instructions = 8}, {.cycles = 5});
  issue(1, 1);
  progress.end_pipeline();
  vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[gp0], 9U) << "user mode only, and what it had begun when it was left";
  EXPECT_EQ(deltas[gp1], 3U);
  EXPECT_EQ(deltas.filtered_cycles[1], 0U);
  progress.observe({.cpl = 0});
  issue(1, 1);
  progress.end_pipeline();
  EXPECT_EQ(progress.take_deltas()[gp0], 0U);
}

// No more instructions pass than could issue as many: four micro-ops in each of the cycles that they may take.
TEST_F(PipelineProgress, StopsBeforeTheNearestOverflow) {
  const MaxCycles cycles{.of_each = 10, .open = 3};
  EXPECT_EQ(at_the_start_of({entry(0, Counts::uops_issued, 1001)}).unseen(true, 500, cycles), 22U);
  EXPECT_EQ(at_the_start_of({of_stalls(0, 1001)}).unseen(true, 500, cycles), 97U);
  EXPECT_EQ(at_the_start_of({entry(0, Counts::uops_issued, 1001)}).unseen(false, 500, cycles), 500U);
  PlanEntry armed = entry(0, Counts::uops_issued);
  armed.armed = true;
  EXPECT_EQ(at_the_start_of({armed}).unseen(true, 500, cycles), 0U) << "a record waits for the next instruction";
  PlanProgress progress = at_the_start_of({entry(0, Counts::uops_issued, 1001)});
  issue(4, 100);
  progress.pass(true, {.instructions = 20}, {.cycles = 100});
  EXPECT_EQ(progress.unseen(true, 500, cycles), 12U);
}

// Cycles are told when code retires, and so may come later than what was issued in them.
TEST_F(PipelineProgress, NoCountGoesBack) {
  PlanProgress progress = at_the_start_of({of_stalls(0)});
  issue(0, 5);
  progress.pass(true, {}, {});
  totals[Q::issued].add(4, 3, true);
  progress.pass(true, {}, {});
  totals.cycles += 3;
  progress.pass(true, {}, {});
  EXPECT_EQ(progress.take_deltas()[gp0], 5U);
  issue(0, 2);
  progress.pass(true, {}, {});
  EXPECT_EQ(progress.take_deltas()[gp0], 2U);
  totals[Q::issued].add(4, 50, true);
  progress.pass(true, {}, {});
  EXPECT_EQ(progress.take_deltas()[gp0], 0U);
}

// A quantity that this pipeline does not have is not made of instructions, nor of cycles by INV.
TEST_F(PipelineProgress, WhatItDoesNotTellIsAsWithoutOne) {
  PlanEntry inverted = entry(1, Counts::recovery_cycles);
  inverted.per_cycle = inverted.spec.inv = true;
  inverted.spec.cmask = 1;
  EXPECT_FALSE(PlanProgress::wants_pipeline(plan_of({inverted, entry(0, Counts::uops_executed)}), told));
  EXPECT_TRUE(PlanProgress::wants_pipeline(plan_of({inverted, entry(0, Counts::uops_issued)}), told));
  PlanProgress progress = at_the_start_of({entry(0, Counts::uops_executed), inverted});
  totals[Q::executed].add(4, 7, true);
  totals[Q::recovery].add(1, 7, true);
  totals.cycles += 100;
  progress.pass(true, {.instructions = 5}, {.cycles = 100});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[gp0], 5U) << "one for each instruction";
  EXPECT_EQ(deltas[gp1], 0U);
  EXPECT_FALSE(deltas.by_pipeline.has(gp0));
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
  progress.pass(true, {.instructions = 10, .branches = 7}, {});
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 7U);
  progress.observe({.cpl = 3, .branch = {.kind = vpmu::BranchKind::far, .taken = true}});
  EXPECT_EQ(progress.unseen(true, 500), 92U);
  progress.observe({.cpl = 3, .branch = {.kind = vpmu::BranchKind::near_ret, .taken = true}});
  EXPECT_EQ(progress.unseen(true, 500), 91U);
}

// Branches of single kinds pass in blocks, too.
// A fused multiply-add counts twice, so that only half as many instructions may pass.
TEST(PlanProgress, TakesTheClassesThatTheEngineCounted) {
  using enum vpmu::InstructionClass;
  const vpmu::CountPlan plan = plan_of({entry(0, Counts::fp_scalar_double, 101), entry(1, Counts::nops)});
  EXPECT_TRUE(PlanProgress::wants_classes(plan));
  EXPECT_FALSE(PlanProgress::wants_classes(plan_of({entry(0, Counts::instructions)})));
  vpmu::exec::ClassCounts classes{};
  PlanProgress progress;
  progress.begin(plan, nullptr, clocks, &classes);
  EXPECT_EQ(progress.unseen(true, 500), 50U);
  classes[static_cast<unsigned>(sse_scalar_double_arithmetic)] = 4;
  classes[static_cast<unsigned>(avx_scalar_double_twice)] = 3;
  classes[static_cast<unsigned>(sse_scalar_single_arithmetic)] = 9;
  classes[static_cast<unsigned>(nop)] = 5;
  progress.pass(true, {.instructions = 21}, {});
  classes[static_cast<unsigned>(nop)] = 6;
  progress.pass(false, {.instructions = 1}, {});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[vpmu::CounterId::gp(0)], 10U);
  EXPECT_EQ(deltas[vpmu::CounterId::gp(1)], 5U) << "user mode only";
  EXPECT_EQ(progress.unseen(true, 500), 45U);
  progress.observe({.cpl = 3, .kind = avx_scalar_double_twice});
  EXPECT_EQ(progress.unseen(true, 500), 44U);
}

TEST(PlanProgress, TakesTheBranchesThatTheModelSaw) {
  vpmu::uarch::ProcessorModel model{*vpmu::uarch::find_profile("skylake")};
  constexpr std::array kinds{Counts::branches_taken, Counts::branches_not_taken, Counts::branches_conditional,
                             Counts::branches_call, Counts::branches_return};
  vpmu::CountPlan plan;
  for (unsigned i = 0; i < kinds.size(); ++i) plan.entries[plan.size++] = entry(i, kinds[i], 100);
  EXPECT_TRUE(vpmu::uarch::ProcessorModel::is_wanted(plan));
  PlanProgress progress;
  progress.begin(plan, &model, clocks);
  EXPECT_EQ(progress.unseen(true, 500), 99U);
  using enum vpmu::BranchKind;
  for (const vpmu::BranchKind kind : {conditional, near_rel_call, near_ind_call, near_ret, near_rel_jmp, far})
    model.branched({.at = 16, .fall_through = 20, .to = 64, .kind = kind, .taken = true});
  model.branched({.at = 16, .fall_through = 20, .to = 20, .kind = conditional, .taken = false});
  progress.pass(true, {.instructions = 7, .branches = 7}, {});
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
  progress.begin(plan, &model, clocks);
  for (const std::uint64_t at : {0x1000U, 0x2000U, 0x8000U}) load(at);
  progress.pass(true, {.instructions = 3, .loads = 3}, {});
  vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[vpmu::CounterId::gp(0)], 3U) << "two from memory, and one whose fill is in flight";
  EXPECT_EQ(deltas[vpmu::CounterId::gp(1)], 0U);
  EXPECT_EQ(progress.unseen(true, 500), 96U);
  load(0x3000);
  progress.observe({.cpl = 3, .has_load = true});
  EXPECT_EQ(progress.unseen(true, 500), 95U);
  progress.pass(true, {}, {});
  EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], 0U) << "the observed one is the PMU's";
}

// Rule C8. What both threads do at the same time is one cycle of their core.
TEST(PlanProgress, CountersOfBothThreadsGetTheOthersEvents) {
  UnhaltedClocks bus{{.khz = 100'000}};
  bus.follow(2'500'000);
  const auto any = [](unsigned gp, Counts counts) {
    PlanEntry e = entry(gp, counts);
    e.spec.any = true;
    return e;
  };
  PlanEntry both_levels = any(3, Counts::cycles);
  both_levels.os = true;
  PlanProgress progress;
  progress.begin(plan_of({any(0, Counts::instructions), any(1, Counts::cycles), any(2, Counts::bus_cycles), both_levels,
                          entry(4, Counts::cycles)}),
                 nullptr, bus);
  progress.pass_beside({.instructions = {1000, 500}, .alone = {400, 250}});
  const vpmu::CountDeltas deltas = progress.take_deltas();
  const auto counted = [&](unsigned gp) { return deltas[vpmu::CounterId::gp(gp)]; };
  EXPECT_EQ(counted(0), 500U) << "all that it ran in user mode";
  EXPECT_EQ(counted(1), 250U) << "while this one was halted";
  EXPECT_EQ(counted(2), 10U);
  EXPECT_EQ(counted(3), 650U);
  EXPECT_EQ(counted(4), 0U) << "without ANY";
}

// Rules C4, C8: with ANY, CMASK is compared with the sum of both threads. A cycle has one instruction of each thread
// that runs.
TEST(PlanProgress, CmaskIsComparedWithTheSumOfBothThreads) {
  struct Case {
    Counts counts;
    std::uint8_t cmask;
    bool inv, user_only;
    std::uint64_t counted;
  };
  const std::array cases{
      Case{Counts::instructions, 1, false, false, 650},  Case{Counts::instructions, 2, false, false, 850},
      Case{Counts::instructions, 3, false, false, 0},    Case{Counts::uops_retired, 2, false, false, 850},
      Case{Counts::uops_retired, 0, false, false, 1500}, Case{Counts::cycles, 1, false, false, 650},
      Case{Counts::cycles, 2, false, false, 0},          Case{Counts::instructions, 2, true, false, 0},
      Case{Counts::instructions, 1, false, true, 0}};
  for (const Case& c : cases) {
    PlanEntry e = entry(0, c.counts);
    e.os = !c.user_only;
    e.spec.any = true;
    e.spec.cmask = c.cmask;
    e.spec.inv = c.inv;
    e.per_cycle = c.cmask != 0 || c.inv;
    PlanProgress progress;
    progress.begin(plan_of({e}), nullptr, clocks);
    progress.pass_beside({.instructions = {1000, 500}, .alone = {400, 250}});
    EXPECT_EQ(progress.take_deltas()[vpmu::CounterId::gp(0)], c.counted)
        << static_cast<unsigned>(c.counts) << ' ' << unsigned{c.cmask} << c.inv << c.user_only;
  }
}

TEST(PlanProgress, TicksCountAsAloneWhileTheSiblingIsHalted) {
  UnhaltedClocks bus{{.khz = 100'000}};
  bus.follow(2'500'000);
  PlanProgress progress;
  progress.begin(plan_of({entry(0, Counts::bus_cycles_alone), entry(1, Counts::bus_cycles)}), nullptr, bus);
  progress.pass(true, {.instructions = 250}, bus.pass(250));
  bus.beside(true);
  progress.pass(true, {.instructions = 500}, bus.pass(500));
  const vpmu::CountDeltas deltas = progress.take_deltas();
  EXPECT_EQ(deltas[vpmu::CounterId::gp(0)], 10U);
  EXPECT_EQ(deltas[vpmu::CounterId::gp(1)], 30U);
}

}  // namespace
}  // namespace vmm
