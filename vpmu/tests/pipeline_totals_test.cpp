#include "vpmu/pipeline_totals.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "pebs_session.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/cycle_condition.hpp"

namespace vpmu::test {
namespace {

using Form = PipelinePattern::Form;
using enum PipelineQuantity;

/// So many cycles with this much of a quantity.
struct Stretch {
  std::uint64_t amount, cycles;
};

PipelineTotals totals_of(PipelineQuantity quantity, const std::vector<Stretch>& runs) {
  PipelineTotals totals;
  bool had_some = false;
  for (const Stretch& run : runs) {
    totals.cycles += run.cycles;
    totals[quantity].add(run.amount, run.cycles, !had_some);
    had_some = run.amount != 0;
  }
  return totals;
}

/// What a counter has of these runs, cycle by cycle.
std::uint64_t cycle_by_cycle(const EventSpec& select, const std::vector<Stretch>& runs) {
  CycleCondition condition;
  std::uint64_t counted = 0;
  std::uint64_t ended = 0;  // Cycles before this one.
  for (const Stretch& run : runs)
    for (std::uint64_t i = 0; i < run.cycles; ++i)
      counted += condition.retire(select, run.amount, std::exchange(ended, 1));
  return counted + condition.retire(select, 0, 1);
}

std::vector<Stretch> random_runs(unsigned seed, std::uint64_t max_amount) {
  std::mt19937 random{seed};
  std::vector<Stretch> runs;
  for (unsigned i = 0; i < 50; ++i) runs.push_back({random() % (max_amount + 1), 1 + random() % 4});
  return runs;
}

std::uint64_t count_of(PipelineQuantity quantity, const EventSpec& select, const std::vector<Stretch>& runs) {
  return pipeline_count({.of = PipelineQuantities::of(quantity)}, select, totals_of(quantity, runs));
}

// Rule C4.
TEST(PipelineTotals, EventsWithoutCmaskAreTheSumAndInvDoesNothing) {
  for (const bool inv : {false, true}) EXPECT_EQ(count_of(issued, {.inv = inv}, {{3, 2}, {0, 5}, {4, 1}}), 10U) << inv;
}

// Rule C4: totals give what each cycle by itself gives, also beyond what a cycle can have.
TEST(PipelineTotals, CmaskAndInvCountTheSameCyclesAsOneByOne) {
  std::uint64_t counted = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const std::vector<Stretch> runs = random_runs(seed, 8);
    for (std::uint8_t cmask = 1; cmask <= 10; ++cmask)
      for (const bool inv : {false, true}) {
        const EventSpec select{.cmask = cmask, .inv = inv};
        const std::uint64_t expected = cycle_by_cycle(select, runs);
        EXPECT_EQ(count_of(executed, select, runs), expected) << seed << " cmask " << unsigned{cmask} << " inv " << inv;
        counted += expected;
      }
  }
  EXPECT_GT(counted, 10'000U);
}

// Rule C4: how often there begins to be some is exact; that it ceases to be differs by one at the ends.
TEST(PipelineTotals, EdgeCountsBeginnings) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const std::vector<Stretch> runs = random_runs(seed, 2);
    for (const std::uint8_t cmask : std::initializer_list<std::uint8_t>{0, 1}) {
      const EventSpec select{.cmask = cmask, .edge = true};
      const std::uint64_t expected = cycle_by_cycle(select, runs);
      EXPECT_GT(expected, 5U);
      EXPECT_EQ(count_of(recovery, select, runs), expected) << seed;
    }
    const EventSpec ends{.cmask = 1, .edge = true, .inv = true};
    const std::uint64_t expected = cycle_by_cycle(ends, runs);
    EXPECT_NEAR(static_cast<double>(count_of(recovery, ends, runs)), static_cast<double>(expected), 1) << seed;
  }
}

// Of 100 cycles 50 have at least three: by chance every second of them follows one that has not.
TEST(PipelineTotals, OtherBeginningsAreEstimatedAsIfByChance) {
  EXPECT_EQ(count_of(issued, {.cmask = 3, .edge = true}, {{4, 50}, {2, 50}}), 25U);
  EXPECT_EQ(count_of(issued, {.cmask = 3, .edge = true}, {{2, 100}}), 0U);
  EXPECT_EQ(count_of(issued, {.cmask = 3, .edge = true}, {{4, 100}}), 0U);
  EXPECT_EQ(count_of(issued, {.cmask = 3, .edge = true}, {}), 0U);
  // 2^40 cycles, whose square is no 64-bit number.
  constexpr std::uint64_t long_time = std::uint64_t{1} << 39;
  EXPECT_EQ(count_of(issued, {.cmask = 3, .edge = true}, {{4, long_time}, {2, long_time}}), long_time / 2);
}

// A source counts by differences: whatever passes, no form may fall.
TEST(PipelineTotals, CountsOnlyGrow) {
  const std::array patterns{
      PipelinePattern{.of = PipelineQuantities::of(executed)},
      PipelinePattern{.of = PipelineQuantities::of(executed), .form = Form::some},
      PipelinePattern{.of = PipelineQuantities::of(executed), .form = Form::exactly, .number = 0},
      PipelinePattern{.of = PipelineQuantities::of(executed), .form = Form::exactly, .number = 2}};
  for (const PipelinePattern& pattern : patterns)
    for (std::uint8_t cmask = 0; cmask <= 9; ++cmask)
      for (const bool inv : {false, true})
        for (const bool edge : {false, true}) {
          std::vector<Stretch> runs;
          std::uint64_t last = 0;
          for (const Stretch& run : random_runs(7, 8)) {
            runs.push_back(run);
            const std::uint64_t now =
                pipeline_count(pattern, {.cmask = cmask, .edge = edge, .inv = inv}, totals_of(executed, runs));
            ASSERT_GE(now, last) << "cmask " << unsigned{cmask} << " inv " << inv << " edge " << edge;
            last = now;
          }
        }
}

// EXE_ACTIVITY.1_PORTS_UTIL and its like.
TEST(PipelineTotals, CyclesWithExactlySoMuch) {
  const std::vector<Stretch> runs{{0, 7}, {1, 5}, {2, 3}, {8, 2}, {0, 1}};
  const auto count = [&](std::uint8_t number, const EventSpec& select) {
    const PipelinePattern pattern{
        .of = PipelineQuantities::of(executed), .form = Form::exactly, .number = number, .by_umask = false};
    return pipeline_count(pattern, select, totals_of(executed, runs));
  };
  for (const auto& [number, cycles] : {std::pair<std::uint8_t, unsigned>{0, 8}, {1, 5}, {2, 3}, {3, 0}, {8, 2}}) {
    EXPECT_EQ(count(number, {}), cycles) << unsigned{number};
    EXPECT_EQ(count(number, {.cmask = 1}), cycles) << unsigned{number};
    EXPECT_EQ(count(number, {.cmask = 2}), 0U) << unsigned{number};
    EXPECT_EQ(count(number, {.cmask = 1, .inv = true}), 18U - cycles) << unsigned{number};
  }
  EXPECT_EQ(count(0, {.cmask = 1, .edge = true}), 1U) << "runs with some and with none take turns";
}

// SDM 3B table 19-9, A3H: a cycle counts the umask, so that a CMASK of the same value asks for all of its bits.
TEST(PipelineTotals, CycleActivityCountsByItsUmask) {
  const std::vector<Stretch> runs{{0, 7}, {3, 5}};
  const auto count = [&](std::uint8_t cmask) {
    return pipeline_count(
        {.of = PipelineQuantities::of(l1d_misses_pending), .form = Form::some, .number = 0, .by_umask = true},
        {.code = 0xA3, .umask = 0x08, .cmask = cmask}, totals_of(l1d_misses_pending, runs));
  };
  EXPECT_EQ(count(8), 5U);
  EXPECT_EQ(count(9), 0U);
  EXPECT_EQ(count(0), 40U);
}

// IDQ.ALL_DSB_CYCLES_4_UOPS: in a cycle one path delivers.
TEST(PipelineTotals, WhatExcludesEachOtherAddsUp) {
  PipelineTotals totals{.cycles = 100};
  totals[from_dsb].add(4, 30, true);
  totals[microcode_from_dsb].add(4, 8, true);
  totals[microcode_from_dsb].add(1, 2, false);
  totals[from_mite].add(4, 20, true);
  const PipelinePattern pattern{.of = PipelineQuantities::of(from_dsb, microcode_from_dsb)};
  EXPECT_EQ(pipeline_count(pattern, {}, totals), 154U);
  EXPECT_EQ(pipeline_count(pattern, {.cmask = 1}, totals), 40U);
  EXPECT_EQ(pipeline_count(pattern, {.cmask = 4}, totals), 38U);
  EXPECT_EQ(pipeline_count(pattern, {.cmask = 4, .inv = true}, totals), 62U);
  EXPECT_EQ(pipeline_count(pattern, {.cmask = 1, .edge = true}, totals), 2U);
}

TEST(PipelineQuantities, AreASet) {
  const auto both = PipelineQuantities::of(issued, self_modifying_code);
  EXPECT_TRUE(both.contains(PipelineQuantities::of(issued)));
  EXPECT_TRUE(both.contains({}));
  EXPECT_FALSE(both.contains(PipelineQuantities::of(executed)));
  EXPECT_FALSE(PipelineQuantities{}.contains(both));
  EXPECT_TRUE(all_pipeline_quantities.contains(both));
  EXPECT_TRUE(PipelineQuantities{}.empty());
  std::vector<PipelineQuantity> found;
  both.for_each([&](PipelineQuantity q) { found.push_back(q); });
  EXPECT_EQ(found, (std::vector{issued, self_modifying_code}));
  unsigned all = 0;
  all_pipeline_quantities.for_each([&](PipelineQuantity) { ++all; });
  EXPECT_EQ(all, pipeline_quantity_count);
}

constexpr Select not_delivered_slots{.event = 0x9C, .umask = 0x01};
constexpr Select front_end_was_ok{.event = 0x9C, .umask = 0x01, .cmask = 1, .inv = true};
constexpr Select issued_uops{.event = 0x0E, .umask = 0x01};

// A retirement is no cycle of a pipeline, and without one nothing may look like a count: INV, least of all.
TEST(PipelineEvents, CountBySettlingAlone) {
  for (const Select& select :
       {not_delivered_slots, front_end_was_ok, Select{.event = 0x9C, .umask = 0x01, .cmask = 16, .inv = true},
        Select{.event = 0x0D, .umask = 0x01, .edge = true}}) {
    PebsSession s;
    s.write(msr::IA32_PERFEVTSEL0, select.raw());
    Retirement r = s.plain(1);
    r.cycles = 9;
    for (unsigned i = 0; i < 5; ++i) s.retire(r);
    EXPECT_EQ(s.pmc(0), 0U) << select;
    CountDeltas deltas;
    deltas[CounterId::gp(0)] = 123;
    s.pmu.settle(deltas, s.env);
    EXPECT_EQ(s.pmc(0), 123U) << select;
  }
}

// Rule P18 is for what retires: of a pipeline, a source compares with CMASK itself.
TEST(PipelineEvents, ThePlanNamesThemAsTheyAreProgrammed) {
  PebsSession s;
  s.write(msr::IA32_PERFEVTSEL0, front_end_was_ok.raw());
  s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.event = 0xA3, .umask = 0x14, .cmask = 20, .inv = true}.raw());
  s.write(msr::IA32_PERFEVTSEL0 + 2, Select{.event = 0x0E, .umask = 0x01, .cmask = 16, .inv = true}.raw());
  const CountPlan plan = s.pmu.plan();
  EXPECT_EQ(plan.entries[0].counts, Counts::slots_not_delivered);
  EXPECT_TRUE(plan.entries[0].per_cycle);
  EXPECT_EQ(plan.entries[1].counts, Counts::load_stall_cycles);
  EXPECT_TRUE(plan.entries[1].per_cycle);
  EXPECT_EQ(plan.entries[2].counts, Counts::cycles) << "no cycle issues so many";
}

// What is issued and executed is known without a pipeline, too: then each retirement says how much.
TEST(PipelineEvents, MicroOpsCountWhereTheSourceSays) {
  for (const Select& select : {issued_uops, Select{.event = 0xB1, .umask = 0x01}}) {
    PebsSession s;
    s.write(msr::IA32_PERFEVTSEL0, select.raw());
    s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.event = 0xC2, .umask = 0x02}.raw());
    Retirement r = s.plain(1);
    r.uops = 3;
    s.retire(r);
    EXPECT_EQ(s.pmc(0), 3U);
    r.has_pipeline = true;
    s.retire(r);
    EXPECT_EQ(s.pmc(0), 3U) << "they come by settle()";
    EXPECT_EQ(s.pmc(1), 3U) << "what retires, too";
  }
}

// UOPS_RETIRED is precise: what the pipeline counts overflows, and an instruction that retires behind it is in the
// record.
TEST(PipelineEvents, ARecordOfRetiredMicroOpsIsOfAnInstruction) {
  for (const std::uint8_t umask : std::initializer_list<std::uint8_t>{0x01, 0x02}) {
    PebsSession s{PmuConfig{.generation = Generation::haswell}};
    s.start_pebs(0, {.event = 0xC2, .umask = umask}, 10);
    Retirement r = s.plain(1);
    r.has_pipeline = true;
    for (int n = 0; n < 20; ++n) s.retire(r);
    EXPECT_EQ(s.pmc(0), minus(10)) << "none of them counts";
    CountDeltas deltas;
    deltas[CounterId::gp(0)] = 9;
    deltas.by_pipeline.add(CounterId::gp(0));
    s.pmu.settle(deltas, s.env);
    s.retire(r);
    EXPECT_EQ(s.records(), 0U);
    for (int n = 0; n < 2; ++n) s.pmu.settle(deltas, s.env);
    EXPECT_EQ(s.records(), 0U);
    EXPECT_EQ(s.statistics().late_triggers, 0U) << "these events are of no instruction that was missed";
    r = s.plain(2);
    r.has_pipeline = true;
    s.retire(r);
    ASSERT_EQ(s.records(), 1U);
    EXPECT_EQ(s.eventing_ip(0), s.a(2).value());
  }
}

// Rule P18: the form of UOPS_RETIRED by which Linux samples cycles gets those of each instruction, too, as the plan
// tells sources that it counts cycles.
TEST(PipelineEvents, TheFormThatCountsEveryCycleGetsThoseOfARetirement) {
  for (const bool has_pipeline : {false, true}) {
    PebsSession s{PmuConfig{.generation = Generation::haswell}};
    s.start_pebs(0, {.event = 0xC2, .umask = 0x01, .cmask = 16, .inv = true}, 1000);
    EXPECT_EQ(s.pmu.plan().entries[0].counts, Counts::cycles);
    Retirement r = s.plain(1);
    r.has_pipeline = has_pipeline;
    for (const std::uint8_t cycles : std::initializer_list<std::uint8_t>{1, 0, 7}) {
      r.cycles = cycles;
      s.retire(r);
    }
    EXPECT_EQ(s.pmc(0), minus(1000) + 8) << has_pipeline;
  }
}

// Each kind that only a pipeline tells has a quantity, and nothing that a retirement could add.
TEST(PipelineEvents, HaveAQuantityEach) {
  unsigned told = 0;
  PipelineQuantities used;
  for (unsigned i = 0; i < counts_kinds; ++i) {
    const CountsDesc& desc = describe(static_cast<Counts>(i));
    EXPECT_EQ(only_pipeline_tells(desc.counts), desc.tally == Tally::pipeline) << i;
    desc.pipeline.of.for_each([&](PipelineQuantity q) { used = used | PipelineQuantities::of(q); });
    if (!only_pipeline_tells(desc.counts)) continue;
    EXPECT_FALSE(desc.pipeline.of.empty()) << i;
    EXPECT_EQ(desc.of({.has_load = true, .uops = 4, .cycles = 9}), 0U) << i;
    EXPECT_GE(desc.max, 1U) << i;
    ++told;
  }
  EXPECT_EQ(told, 59U);
  EXPECT_EQ(used, all_pipeline_quantities) << "a quantity that no event counts is for nothing";
}

}  // namespace
}  // namespace vpmu::test
