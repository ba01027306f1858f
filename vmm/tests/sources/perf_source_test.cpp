#include "sources/perf_source.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "sources/perf_source_rig.hpp"

// What the perf source does beyond the contract of all sources: who counts, and what it costs.

namespace vmm::test {
namespace {

TEST_F(PerfSourceOn, OneHostEventOfTheGuestForEachCounter) {
  PlanEntry user = counter(pmc1, Counts::branches, 0xC4);
  user.os = user.spec.os = false;
  program({instructions(), user, counter(fixed0, Counts::instructions, 0)});
  ASSERT_EQ(perf_.opened.size(), 3U);
  EXPECT_EQ(perf_.opened[0],
            (PerfEventSpec{.event = {PERF_TYPE_RAW, 0xC0}, .usr = true, .os = true, .guest_only = true}));
  EXPECT_EQ(perf_.opened[1],
            (PerfEventSpec{.event = {PERF_TYPE_RAW, 0xC4}, .usr = true, .os = false, .guest_only = true}));
  EXPECT_EQ(perf_.opened[2].event, perf_.opened[0].event);
  EXPECT_EQ(perf_.running(), 3U);
}

TEST_F(PerfSourceOn, EventsStayOpenAndRestWhileTheirCounterDoes) {
  program({instructions()});
  ASSERT_TRUE(run(1us));
  program({});
  EXPECT_EQ(perf_.running(), 0U);
  ASSERT_TRUE(run(1us));
  const std::uint64_t before = truth();
  counted_ = {};
  program({instructions()});
  ASSERT_TRUE(run(1us));
  EXPECT_EQ(perf_.opened.size(), 1U);
  EXPECT_EQ(counted_[pmc0], truth() - before) << "nothing of the time between";
  program({counter(pmc0, Counts::branches, 0xC4)});
  EXPECT_EQ(perf_.opened.size(), 2U) << "another event";
  EXPECT_EQ(perf_.running(), 1U);
}

TEST_F(PerfSourceOn, HostCountsAndTheEngineRests) {
  program({instructions(), counter(pmc1, Counts::branches, 0xC4)});
  ASSERT_TRUE(run(1ms));
  EXPECT_GT(counted_[pmc0], 50'000U);
  EXPECT_EQ(counted_[pmc1], rig_.cpu.retired_at[LoopingGuest::code + 8]);
  EXPECT_EQ(statistic("pmu.exact.instructions"), 0U);
  EXPECT_EQ(statistic("pmu.perf.windows"), 0U);
}

// SDM 3B 18.17.4: 3CH/01H counts a clock of a fixed frequency. The bus clock runs at 133.33 MHz up to Westmere, then at
// 100 MHz; Skylake counts the core crystal clock of 24 MHz, its server one of 25 MHz.
TEST_F(PerfSourceOn, BusCyclesAreOfTheModelsBusClock) {
  struct Row {
    vpmu::Generation guest;
    std::uint64_t khz, of;
  };
  rig_.guest.backend.can.tsc_khz = 2'500'000;
  for (const Row& row : {Row{vpmu::Generation::nehalem, 400'000, 3}, Row{vpmu::Generation::westmere_ex, 400'000, 3},
                         Row{vpmu::Generation::sandy_bridge, 100'000, 1}, Row{vpmu::Generation::haswell, 100'000, 1},
                         Row{vpmu::Generation::broadwell_ep, 100'000, 1}, Row{vpmu::Generation::skylake, 24'000, 1},
                         Row{vpmu::Generation::skylake_sp, 25'000, 1}}) {
    for (const HostCpu& host : {HostCpu{.vendor = HostVendor::intel, .generation = vpmu::Generation::skylake},
                                HostCpu{.vendor = HostVendor::intel, .generation = {}},
                                HostCpu{.vendor = HostVendor::amd, .generation = {}}}) {
      if (host.generation == row.guest) continue;  // it has the event itself
      perf_.host_cpu = host;
      counted_ = {};
      make_of(row.guest);
      program({counter(fixed2, Counts::ref_cycles, 0), counter(pmc0, Counts::bus_cycles, 0x3C, 0x01)});
      for (unsigned n = 0; n < 7; ++n) ASSERT_TRUE(run(333us)) << failure_;
      ASSERT_GT(counted_[fixed2], 100'000U);
      EXPECT_EQ(counted_[pmc0], counted_[fixed2] * row.khz / (2'500'000 * row.of))
          << vpmu::describe(row.guest).name << ": not one is lost between pieces";
    }
  }
}

// A host of the guest's model has the right event itself.
TEST_F(PerfSourceOn, BusCyclesOfTheSameModelAreTheHostsOwn) {
  perf_.host_cpu.generation = vpmu::Generation::haswell;
  make_of(vpmu::Generation::haswell);
  program({counter(pmc0, Counts::bus_cycles, 0x3C, 0x01)});
  ASSERT_EQ(perf_.opened.size(), 1U);
  EXPECT_EQ(perf_.opened[0].event, (HostEvent{PERF_TYPE_RAW, 0x013C}));
  ASSERT_TRUE(run(1ms));
  EXPECT_EQ(counted_[pmc0], truth());
}

// Kicks come `margin` bus cycles before the overflow; the engine runs the rest.
TEST_F(PerfSourceOn, BusCyclesOverflowAtTheirOwnRate) {
  constexpr std::uint64_t distance = 1000, ratio = 25;
  rig_.guest.backend.can.tsc_khz = 2'500'000;
  make_of(vpmu::Generation::haswell);
  program({sampling(counter(pmc0, Counts::bus_cycles, 0x3C, 0x01), distance)});
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], distance - margin);
  EXPECT_EQ(truth(), (distance - margin) * ratio);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U);
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.perf.windows"), 1U);
}

// The engine runs what the skid has left of the margin.
TEST_F(PerfSourceOn, EngineGoesTheLastPieceToTheVeryEvent) {
  for (const std::uint64_t skid : {0ULL, 37ULL, 199ULL}) {
    SCOPED_TRACE(skid);
    source_.reset();
    counted_ = {};
    perf_.skid = skid;
    const std::uint64_t begin = truth();
    program({sampling(instructions(), 100'000)});
    run_to(pmc0, 100'000);
    EXPECT_EQ(counted_[pmc0], 100'000U);
    EXPECT_EQ(truth() - begin, 100'000U);
    EXPECT_EQ(statistic("pmu.exact.instructions"), margin - skid);
    EXPECT_EQ(statistic("pmu.perf.windows"), 1U);
    EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U);
  }
}

TEST_F(PerfSourceOn, PeriodIsSetOnceForEachOverflow) {
  program({sampling(instructions(), 1'000'000)});
  for (int n = 0; n < 5; ++n) {
    ASSERT_TRUE(run(1us));
  }
  EXPECT_EQ(perf_.periods_set, 1U) << "exits on the way leave it alone";
  run_to(pmc0, 1'000'000);
  counted_ = {};
  program({sampling(instructions(), 500'000)});
  run_to(pmc0, 500'000);
  EXPECT_EQ(counted_[pmc0], 500'000U);
  EXPECT_EQ(perf_.periods_set, 2U);
}

TEST_F(PerfSourceOn, OvershootIsCountedLosesNothingAndMakesTheMarginLonger) {
  perf_.skid = 1000;
  const std::uint64_t begin = truth();
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(counted_[pmc0], 100'800U) << "1000 behind a stop 200 before";
  EXPECT_EQ(truth() - begin, 100'800U);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 1U);
  EXPECT_EQ(statistic("pmu.perf.margin"), 1500U);
  counted_ = {};
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(counted_[pmc0], 100'000U) << "now it is there in time";
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 1U);
}

TEST_F(PerfSourceOn, ArmedCountersWalkInTheEngine) {
  PlanEntry loads = sampling(counter(pmc0, Counts::loads, 0xD0, 0x81), far_away);
  loads.precise = loads.armed = true;
  program({loads});
  rig_.guest.backend.registers.rip = LoopingGuest::code;
  bool loaded = false;
  for (int n = 0; n < 8 && !loaded; ++n) {
    const auto end = source_->walk(rig_.guest.backend);
    ASSERT_TRUE(end && end->retired);
    loaded = end->retired->what.has_load;
    EXPECT_EQ(loaded, end->retired->what.ip.value() == LoopingGuest::load_at);
  }
  EXPECT_TRUE(loaded);
  ASSERT_TRUE(run()) << "as the vCPU loop does between walks";
  EXPECT_EQ(rig_.cpu.retired, 0U) << "not an instruction on the host";
}

TEST_F(PerfSourceOn, BranchRecordsNeedTheEngine) {
  program({instructions()});
  plan_.branches_wanted = true;
  ASSERT_TRUE(source_->program(plan_));
  ASSERT_TRUE(run());
  EXPECT_EQ(rig_.cpu.retired, 0U);
}

// 1 instruction in 8 is a load. Loads are no architectural event, so a newer Intel host cannot count them.
TEST_F(PerfSourceOn, EventsThatTheHostLacksAreCountedByTheEngineAndNamed) {
  perf_.host_cpu = {.vendor = HostVendor::intel, .generation = {}};
  program({instructions(), counter(pmc1, Counts::loads, 0xD0, 0x81)});
  const std::uint64_t begin = truth();
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], truth() - begin);
  EXPECT_EQ(counted_[pmc1], counted_[pmc0] / 8);
  EXPECT_GT(counted_[pmc1], 0U);
  EXPECT_EQ(statistic("pmu.perf.by_engine.r81d0"), 1U);
  EXPECT_EQ(rig_.cpu.retired, 0U);
  counted_ = {};
  const std::uint64_t again = truth();
  program({instructions()});
  ASSERT_TRUE(run());  // ends the engine's burst by a single-step on the host
  const std::uint64_t on_host = rig_.cpu.retired;
  EXPECT_EQ(on_host, 1U);
  ASSERT_TRUE(run(1us));
  EXPECT_GT(rig_.cpu.retired, on_host) << "back on the host";
  EXPECT_EQ(counted_[pmc0], truth() - again) << "what was stepped is not counted twice";
}

TEST_F(PerfSourceOn, EventsThatNobodyCountsAreRefusedByName) {
  perf_.host_cpu = {.vendor = HostVendor::amd, .generation = {}};
  program({counter(pmc0, Counts::unmodelled, 0xE6, 0x01), counter(pmc1, Counts::never, 0xC9, 0x01),
           counter(vpmu::CounterId::gp(2), Counts::slots_not_delivered, 0x9C, 0x01)});
  EXPECT_EQ(statistic("pmu.perf.refused.r01e6"), 1U);
  EXPECT_EQ(statistic("pmu.perf.refused.r019c"), 1U) << "the engine has no pipeline";
  EXPECT_EQ(statistic("pmu.perf.refused.r01c9"), 0U) << "cannot happen: 0 is right";
  ASSERT_TRUE(run(1us));
  EXPECT_EQ(counted_[pmc0], 0U);
  EXPECT_GT(rig_.cpu.retired, 0U) << "on the host: the engine could not count it either";
}

TEST_F(PerfSourceOn, EventThatOnlyTheHostKnowsOverflowsWhereItsKickComes) {
  perf_.skid = 30;
  program({sampling(counter(pmc0, Counts::unmodelled, 0xE6, 0x01), 10'000)});
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], 10'030U);
  EXPECT_EQ(rig_.cpu.retired, 10'030U);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U) << "nothing better was promised";
}

// For a cache event the engine only has a model, whose caches are cold here: the overflow is the host's, with its skid.
TEST_F(PerfSourceOn, EventOfCachesOverflowsWhereItsKickComes) {
  perf_.skid = 30;
  program({sampling(counter(pmc0, Counts::llc_misses, 0x2E, 0x41), 10'000)});
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], 10'030U);
  EXPECT_EQ(rig_.cpu.retired, 10'030U);
  EXPECT_EQ(statistic("pmu.perf.windows"), 0U);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U) << "nothing better was promised";
}

// While the engine runs to another counter's overflow, misses in its model must not be counted as the host's.
TEST_F(PerfSourceOn, EventOfCachesRestsWhileTheEngineRuns) {
  program({sampling(instructions(), 10'000), counter(pmc1, Counts::l1_miss, 0xD1, 0x08)});
  ASSERT_TRUE(run());
  const std::uint64_t on_host = counted_[pmc1];
  EXPECT_GT(on_host, 0U);
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.perf.windows"), 1U);
  EXPECT_EQ(counted_[pmc1], on_host);
}

// A record describes a single load as the model sees it, so that the model must see all loads that the counter counts.
TEST_F(PerfSourceOn, PreciseEventOfCachesIsTheEnginesFromTheStart) {
  PlanEntry precise = sampling(counter(pmc0, Counts::l1_miss, 0xD1, 0x08), 10'000);
  precise.precise = true;
  program({precise});
  EXPECT_TRUE(perf_.opened.empty());
  EXPECT_EQ(statistic("pmu.perf.by_engine.r08d1"), 1U);
  ASSERT_TRUE(run());
  EXPECT_EQ(rig_.cpu.retired, 0U);
}

// Branch records require the engine: from then on its model counts the cache event, not the host. That is reported.
TEST_F(PerfSourceOn, EventOfCachesThatMovesIsTold) {
  const PlanEntry misses = counter(pmc0, Counts::l1_miss, 0xD1, 0x08);
  program({misses});
  program({misses});
  EXPECT_EQ(statistic("pmu.perf.moved"), 0U);
  plan_.branches_wanted = true;
  ASSERT_TRUE(source_->program(plan_));
  EXPECT_EQ(statistic("pmu.perf.moved"), 1U);
  ASSERT_TRUE(run());
  EXPECT_EQ(rig_.cpu.retired, 0U);
  program({misses});
  EXPECT_EQ(statistic("pmu.perf.moved"), 2U);
  program({counter(pmc0, Counts::branches, 0xC4)});
  EXPECT_EQ(statistic("pmu.perf.moved"), 2U) << "another event";
}

TEST_F(PerfSourceOn, HostThatRefusesOneEventLeavesItToTheEngine) {
  perf_.open_errors[{PERF_TYPE_RAW, 0x81D0}] = EINVAL;
  program({counter(pmc0, Counts::loads, 0xD0, 0x81)});
  EXPECT_EQ(statistic("pmu.perf.by_engine.r81d0"), 1U);
  ASSERT_TRUE(run());
  EXPECT_GT(counted_[pmc0], 0U);
}

// An event that has a counter half of the time is estimated as twice its count, and the estimate is reported.
TEST_F(PerfSourceOn, TurnsOnTheHostsCountersAreScaledAndTold) {
  perf_.share = 50;
  program({instructions()});
  for (int n = 0; n < 200; ++n) {
    ASSERT_TRUE(run(777ns)) << failure_;
  }
  EXPECT_NEAR(static_cast<double>(counted_[pmc0]), static_cast<double>(truth()), 200.0);
  EXPECT_GT(statistic("pmu.perf.guessed"), truth() / 3);
}

// The host's PMU does not see instructions that KVM emulates. This is a known and documented limit.
TEST_F(PerfSourceOn, InstructionsThatKvmEmulatesAreMissing) {
  perf_.emulated_at = LoopingGuest::load_at;
  program({instructions()});
  ASSERT_TRUE(run(100us));
  EXPECT_EQ(counted_[pmc0], truth() - rig_.cpu.retired_at[LoopingGuest::load_at]);
  EXPECT_FALSE(source_->traits().exact_counts);
}

TEST_F(PerfSourceOn, CalibrationLowersWhatIsPromised) {
  make();
  EXPECT_TRUE(source_->traits().precise_ip);
  make({.margin_instructions = max_margin, .margin_cycles = max_margin, .lands = false});
  EXPECT_FALSE(source_->traits().precise_ip);
}

// In this guest a cycle is an instruction.
TEST_F(PerfSourceOn, EachEventHasTheMarginOfItsKind) {
  make({.margin_instructions = 200, .margin_cycles = 700, .lands = true});
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(statistic("pmu.exact.instructions"), 200U);
  counted_ = {};
  program({sampling(counter(pmc1, Counts::cycles, 0x3C), 100'000)});
  run_to(pmc1, 100'000);
  EXPECT_EQ(counted_[pmc1], 100'000U);
  EXPECT_EQ(statistic("pmu.exact.instructions"), 200U + 700U);
}

TEST_F(PerfSourceOn, OvershootMakesTheMarginOfItsKindLonger) {
  perf_.skid_of_cycles = 1000;
  program({sampling(counter(pmc1, Counts::cycles, 0x3C), 100'000)});
  run_to(pmc1, 100'000);
  EXPECT_EQ(counted_[pmc1], 100'800U) << "1000 behind a stop 200 before";
  EXPECT_EQ(statistic("pmu.perf.margin"), margin);
  EXPECT_EQ(statistic("pmu.perf.margin_cycles"), 1500U);
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(counted_[pmc0], 100'000U);
  EXPECT_EQ(statistic("pmu.exact.instructions"), margin);
}

// An instruction that causes an exit has not retired yet. The engine's burst ends before a load, for which the back
// end's script supplies such an exit.
TEST_F(PerfSourceOn, LeavesTheEngineOnlyBetweenInstructions) {
  perf_.host_cpu = {.vendor = HostVendor::intel, .generation = {}};
  rig_.guest.backend.registers.rip = LoopingGuest::load_at;
  program({counter(pmc1, Counts::loads, 0xD0, 0x81)});
  ASSERT_TRUE(run());
  ASSERT_EQ(rig_.guest.backend.registers.rip, LoopingGuest::load_at);
  rig_.guest.backend.script.push_back(FakeBackend::rdmsr(0xC1));
  const auto exit = run();
  ASSERT_TRUE(exit && exit->exit && std::holds_alternative<MsrRead>(*exit->exit));
  program({instructions()});
  const auto end = run();
  ASSERT_TRUE(end && end->retired);
  EXPECT_EQ(end->retired->what.ip.value(), LoopingGuest::load_at);
  ASSERT_TRUE(run(1us));
  EXPECT_GT(rig_.cpu.retired, 0U) << "and now on the host";
}

}  // namespace
}  // namespace vmm::test
