#include <gtest/gtest.h>

#include "pebs_session.hpp"

// plan() says what to count, settle() takes what was counted.

namespace vpmu::test {
namespace {

using S = PebsSession;

CountDeltas deltas(std::initializer_list<std::pair<CounterId, std::uint64_t>> counted) {
  CountDeltas d;
  for (const auto& [counter, n] : counted) d[counter] = n;
  return d;
}
constexpr CounterId pmc(unsigned i) { return CounterId::gp(i); }

TEST(Settle, AddsToTheCountersThatCount) {
  S s;
  s.start(0, instructions, 100);
  s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.event = 0xC0, .enabled = false}.raw());
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x3);
  s.pmu.settle(deltas({{pmc(0), 30}, {pmc(1), 30}, {CounterId::fixed(0), 7}, {CounterId::fixed(2), 9}}), s.env);
  EXPECT_EQ(s.pmc(0), minus(70));
  EXPECT_EQ(s.pmc(1), 0U) << "not enabled";
  EXPECT_EQ(s.fixed(0), 7U);
  EXPECT_EQ(s.fixed(2), 0U) << "not enabled";
}

// Rules O1, O2, O3 and Q3 for bulk counts.
TEST(Settle, OverflowsWithRemainderStatusAndOneInterrupt) {
  S s;
  s.start(0, with_interrupt(instructions), 10);
  s.start(1, with_interrupt(core_cycles), 5);
  s.pmu.settle(deltas({{pmc(0), 13}, {pmc(1), 5}}), s.env);
  EXPECT_EQ(s.pmc(0), 3U);
  EXPECT_EQ(s.pmc(1), 0U);
  EXPECT_EQ(s.status(), 3U);
  EXPECT_EQ(s.env.pmis, 1U);
}

// Rules Z1, Z6.
TEST(Settle, FreezesOnOverflow) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.start(0, with_interrupt(instructions), 10);
  s.pmu.settle(deltas({{pmc(0), 10}}), s.env);
  s.pmu.settle(deltas({{pmc(0), 10}}), s.env);
  EXPECT_EQ(s.pmc(0), 0U);
  EXPECT_EQ(s.status(), 1U | ctr_frz);
}

// Rule O4: a bulk overflow arms, the next retirement of the event is recorded.
TEST(Settle, ArmsPebsForTheNextRetirement) {
  S s;
  s.start_pebs(0, loads, 10);
  s.pmu.settle(deltas({{pmc(0), 10}}), s.env);
  EXPECT_TRUE(s.pmu.plan().any_armed());
  EXPECT_EQ(s.statistics().late_triggers, 0U);
  s.run(1, 1);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(1).value());
}

// Precise distribution cannot name the overflowing instruction of a bulk count: it records the next event.
TEST(Settle, PreciseDistributionFallsBackToTheNextEvent) {
  S s;
  s.start_pebs(1, precise_distribution, 10);
  s.pmu.settle(deltas({{pmc(1), 10}}), s.env);
  EXPECT_EQ(s.records(), 0U);
  s.run(1, 1);
  EXPECT_EQ(s.records(), 1U);
}

TEST(Settle, CountsTriggersThatCameWithoutTheirInstruction) {
  S s;
  s.start_pebs(0, loads, 10);
  s.pmu.settle(deltas({{pmc(0), 10}}), s.env);
  s.pmu.settle(deltas({{pmc(0), 3}}), s.env);
  EXPECT_EQ(s.statistics().late_triggers, 1U);
  EXPECT_EQ(s.records(), 0U);
  s.run(1, 1);
  EXPECT_EQ(s.records(), 1U) << "the record stands for a later event";
}

// Rule P19: an event that is not precise has no trigger that could be late.
TEST(Settle, ImpreciseEventIsNeverLate) {
  S s;
  s.start_pebs(0, cache_misses, 10);
  s.pmu.settle(deltas({{pmc(0), 10}}), s.env);
  s.pmu.settle(deltas({{pmc(0), 3}}), s.env);
  EXPECT_EQ(s.statistics().late_triggers, 0U);
}

TEST(Plan, ListsExactlyTheCountersThatCountInServiceOrder) {
  S s;
  EXPECT_EQ(s.pmu.plan().size, 0U);
  EXPECT_TRUE(s.pmu.enabled().empty());
  s.start(2, loads, 50);
  s.start(0, core_cycles, 20);
  s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.event = 0xC0, .enabled = false}.raw());
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x201);
  s.write(msr::IA32_FIXED_CTR0, minus(7));
  const CountPlan plan = s.pmu.plan();
  ASSERT_EQ(plan.size, 4U);
  EXPECT_EQ(plan.entries[0].counter, pmc(0));
  EXPECT_EQ(plan.entries[0].counts, Counts::cycles);
  EXPECT_EQ(plan.entries[0].distance, 20U);
  EXPECT_EQ(plan.entries[1].counter, pmc(2));
  EXPECT_EQ(plan.entries[1].counts, Counts::loads);
  EXPECT_EQ(plan.entries[1].distance, 50U);
  EXPECT_EQ(plan.entries[2].counter, CounterId::fixed(0));
  EXPECT_EQ(plan.entries[2].counts, Counts::instructions);
  EXPECT_EQ(plan.entries[2].distance, 7U);
  EXPECT_TRUE(plan.entries[2].os);
  EXPECT_FALSE(plan.entries[2].usr);
  EXPECT_EQ(plan.entries[3].counter, CounterId::fixed(2));
  EXPECT_EQ(plan.entries[3].counts, Counts::ref_cycles);
  EXPECT_EQ(plan.entries[3].distance, bit(48)) << "a counter at 0";
  EXPECT_TRUE(plan.entries[3].usr);
  EXPECT_FALSE(plan.entries[3].os);
  EXPECT_FALSE(s.pmu.enabled().empty());
}

TEST(Plan, IsEmptyWhileFrozenOrStopped) {
  S s;
  s.start(0, loads, 50);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, ctr_frz);
  EXPECT_EQ(s.pmu.plan().size, 0U);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ctr_frz);
  EXPECT_EQ(s.pmu.plan().size, 1U);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0);
  EXPECT_EQ(s.pmu.plan().size, 0U);
}

// Rule P18: a mask that no cycle reaches, inverted, holds in every cycle.
TEST(Plan, InvertedMaskFormsOfEveryCycleAreCycles) {
  struct Row {
    Select form;
    Counts counts;
    bool per_cycle;
  };
  for (const Row& row : {Row{cycles_p, Counts::cycles, false},
                         Row{{.event = 0xC0, .umask = 0x01, .cmask = 10, .inv = true}, Counts::cycles, false},
                         Row{{.event = 0xC2, .umask = 0x02, .cmask = 1, .inv = true}, Counts::slots_retired, true},
                         Row{{.event = 0xC0, .cmask = 16}, Counts::instructions, true},
                         Row{{.event = 0xC0, .cmask = 16, .inv = true, .edge = true}, Counts::instructions, true},
                         Row{{.event = 0xC0, .inv = true}, Counts::instructions, false}}) {
    S s;
    s.start(0, row.form, 1000);
    const PlanEntry e = s.pmu.plan().entries[0];
    EXPECT_EQ(e.counts, row.counts) << row.form.raw();
    EXPECT_EQ(e.per_cycle, row.per_cycle) << row.form.raw();
  }
}

TEST(Plan, SaysWhatAnOverflowIsFor) {
  S s;
  s.start(0, instructions, 9);
  s.start(1, with_interrupt(instructions), 9);
  s.start_pebs(2, loads, 9);
  s.start_pebs(3, cache_misses, 9);
  const CountPlan plan = s.pmu.plan();
  ASSERT_EQ(plan.size, 4U);
  EXPECT_FALSE(plan.entries[0].wants_overflow);
  EXPECT_TRUE(plan.entries[1].wants_overflow);
  EXPECT_FALSE(plan.entries[1].precise);
  EXPECT_TRUE(plan.entries[2].wants_overflow);
  EXPECT_TRUE(plan.entries[2].precise);
  EXPECT_FALSE(plan.entries[2].armed);
  EXPECT_FALSE(plan.entries[3].precise) << "rule P19";
  s.pmu.settle(deltas({{pmc(2), 9}, {pmc(3), 9}}), s.env);
  EXPECT_TRUE(s.pmu.plan().entries[2].armed);
  EXPECT_FALSE(s.pmu.plan().entries[3].armed);
}

// Rules L11, L12: without its facility the load latency event counts nothing, so nothing is asked for.
TEST(Plan, LoadLatencyWithoutItsFacilityIsUnmodelled) {
  S s;
  s.start(3, load_latency, 100);
  EXPECT_EQ(s.pmu.plan().entries[0].counts, Counts::unmodelled);
  s.write(msr::IA32_PEBS_ENABLE, 0x8'0000'0008);
  EXPECT_EQ(s.pmu.plan().entries[0].counts, Counts::load_latency);
}

// Rules L2, L11: a source may count loads by their latency, unless the PMU chooses the tagged ones.
TEST(Plan, TellsFromWhichLatencyOnALoadCounts) {
  for (const std::uint32_t interval : {1U, 2U}) {
    S s{PmuConfig{.policies = {.load_tag_interval = interval}}};
    s.start(3, load_latency, 100);
    EXPECT_FALSE(s.pmu.plan().entries[0].latency_over.has_value());
    s.write(msr::IA32_PEBS_ENABLE, 0x8'0000'0008);
    s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 37);
    EXPECT_EQ(s.pmu.plan().entries[0].latency_over, interval == 1 ? std::optional<std::uint16_t>{37} : std::nullopt);
  }
}

// Rule Z5.
TEST(Plan, WantsBranchesWhileTheLbrRecords) {
  S s;
  EXPECT_FALSE(s.pmu.plan().branches_wanted);
  s.write(msr::IA32_DEBUGCTL, 1);
  EXPECT_TRUE(s.pmu.plan().branches_wanted);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, lbr_frz);
  EXPECT_FALSE(s.pmu.plan().branches_wanted);
}

TEST(Replan, IsAskedForWhenThePlanMayHaveChanged) {
  S s;
  EXPECT_TRUE(s.pmu.take_replan()) << "at first there is no plan";
  EXPECT_FALSE(s.pmu.take_replan());
  s.start(0, with_interrupt(loads), 2);
  EXPECT_TRUE(s.pmu.take_replan());
  s.run(1, 1);
  EXPECT_FALSE(s.pmu.take_replan()) << "counting alone changes distances only";
  s.run(2, 2);
  EXPECT_TRUE(s.pmu.take_replan()) << "overflow";
  (void)s.pmu.rdmsr(msr::IA32_PMC0);
  EXPECT_EQ(s.pmu.wrmsr(msr::IA32_DS_AREA, bit(63)), MsrStatus::gp);
  EXPECT_FALSE(s.pmu.take_replan()) << "neither a read nor a fault changes anything";
  s.pmu.on_debug_exception();
  EXPECT_TRUE(s.pmu.take_replan());
}

TEST(Selected, ShowsASessionEvenWhileItIsStopped) {
  S s;
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0);
  EXPECT_TRUE(s.pmu.selected().empty());
  s.write(msr::IA32_PERFEVTSEL0 + 3, loads.raw());
  s.write(msr::IA32_FIXED_CTR_CTRL, 0xA0);
  CounterSet expected;
  for (const CounterId c : {CounterId::gp(3), CounterId::fixed(1)}) expected.add(c);
  EXPECT_EQ(s.pmu.selected(), expected);
  EXPECT_TRUE(s.pmu.enabled().empty());
  s.write(msr::IA32_PERFEVTSEL0 + 3, loads.raw() & ~reg::perfevtsel::EN::mask);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x80);  // PMI alone enables nothing
  EXPECT_TRUE(s.pmu.selected().empty());
}

}  // namespace
}  // namespace vpmu::test
