#include <gtest/gtest.h>

#include <cerrno>

#include "sources/perf_source_rig.hpp"

// Hosts that withdraw something while a guest runs, or deliver less than they promise. The guest runs on, with one
// warning and a count in the statistics.

namespace vmm::test {
namespace {

class FailingHost : public PerfSourceOn {
 protected:
  /// Every instruction must be counted, but none by the host, which only single-steps between bursts of the engine.
  void expect_engine_counts() {
    const std::uint64_t begin = truth(), on_host = rig_.cpu.retired;
    counted_ = {};
    for (int n = 0; n < 3; ++n) ASSERT_TRUE(run(1us)) << failure_;
    EXPECT_GT(truth(), begin + 1000);
    EXPECT_EQ(counted_[pmc0], truth() - begin);
    EXPECT_LE(rig_.cpu.retired - on_host, 3U);
  }
  /// Every instruction must be counted, and by the host.
  void expect_host_counts() {
    ASSERT_TRUE(run(1us)) << failure_;
    ASSERT_TRUE(run(1us)) << failure_;  // ends the engine's burst
    const std::uint64_t begin = truth(), on_host = rig_.cpu.retired;
    counted_ = {};
    for (int n = 0; n < 3; ++n) ASSERT_TRUE(run(1us)) << failure_;
    EXPECT_GT(rig_.cpu.retired, on_host);
    EXPECT_EQ(rig_.cpu.retired - on_host, truth() - begin);
    EXPECT_EQ(counted_[pmc0], truth() - begin);
  }
  void expect_one_warning(std::initializer_list<std::string_view> parts) {
    ASSERT_EQ(warnings_.size(), 1U);
    for (const std::string_view part : parts)
      EXPECT_NE(warnings_[0].find(part), std::string::npos) << part << " in " << warnings_[0];
  }
};

TEST_F(FailingHost, WithoutCountersOrRightsLeavesTheCountToTheEngineUntilItGivesThemBack) {
  for (const int error : {EACCES, EPERM, EBUSY, EMFILE}) {
    SCOPED_TRACE(error);
    make();
    perf_.open_error = error;
    for (int n = 0; n < 50; ++n) program({instructions()});
    EXPECT_EQ(statistic("pmu.perf.lost"), 50U);
    expect_engine_counts();
    expect_one_warning({"the engine counts event r00c0", "pmu.perf.lost"});
    perf_.open_error = 0;
    program({instructions()});
    expect_host_counts();
    EXPECT_EQ(warnings_.size(), 1U);
  }
}

TEST_F(FailingHost, WithTooFewFilesGivesSomeEventsAndTheEngineCountsAll) {
  perf_.max_open = 1;
  program({instructions(), counter(pmc1, Counts::branches, 0xC4)});
  EXPECT_EQ(perf_.opened.size(), 1U);
  EXPECT_EQ(statistic("pmu.perf.lost"), 1U);
  expect_engine_counts();
  EXPECT_GT(counted_[pmc1], 0U);
  expect_one_warning({"too many open files", "ulimit", "r00c4"});
}

TEST_F(FailingHost, ThatFailsAnOpenEventLeavesItToTheEngine) {
  for (int FakePerf::* const error : {&FakePerf::enable_error, &FakePerf::period_error, &FakePerf::read_error}) {
    make();
    perf_.*error = EIO;
    program({sampling(instructions(), 1'000'000)});
    ASSERT_TRUE(run(1us)) << failure_;  // on the host, where only reading the counter fails
    EXPECT_EQ(statistic("pmu.perf.lost"), 1U);
    expect_engine_counts();
    expect_one_warning({"Input/output error"});
    EXPECT_EQ(perf_.running(), 0U);
    perf_.*error = 0;
  }
}

TEST_F(FailingHost, EventThatNobodyElseKnowsStandsStillWhenTheHostLosesIt) {
  perf_.open_error = EBUSY;
  program({counter(pmc0, Counts::unmodelled, 0xE6, 0x01)});
  ASSERT_TRUE(run(1us)) << failure_;
  EXPECT_EQ(counted_[pmc0], 0U);
  EXPECT_EQ(statistic("pmu.perf.refused.r01e6"), 1U);
  expect_one_warning({"nobody counts event r01e6"});
}

// Nehalem's driver refuses periods below 32, Broadwell's those below 128 for INST_RETIRED.PREC_DIST, and all refuse 1
// for branches. Distances just beyond the margin lead to such periods.
TEST_F(FailingHost, DistancesThatTheDriverDoesNotTakeAreTheEngines) {
  perf_.min_period = 128;
  std::uint64_t refused = 0;
  for (std::uint64_t distance = margin + 1; distance < margin + 300; distance += 7) {
    SCOPED_TRACE(distance);
    counted_ = {};
    const std::uint64_t begin = truth();
    program({sampling(instructions(), distance)});
    run_to(pmc0, distance);
    EXPECT_EQ(counted_[pmc0], distance);
    EXPECT_EQ(truth() - begin, distance);
    refused = std::max(refused, statistic("pmu.perf.short_periods"));
  }
  EXPECT_EQ(refused, perf_.refused_periods);
  EXPECT_GT(refused, 0U);
  EXPECT_LE(refused, 8U) << "the least period is learnt";
  EXPECT_GT(perf_.periods_set, 5U) << "and longer ones are still the host's";
  EXPECT_TRUE(warnings_.empty()) << "nothing is lost";
}

TEST_F(FailingHost, EventThatOnlyTheHostKnowsOverflowsAtTheDriversLeastPeriod) {
  perf_.min_period = 128;
  program({sampling(counter(pmc0, Counts::unmodelled, 0xE6, 0x01), 5)});
  ASSERT_TRUE(run()) << failure_;
  EXPECT_EQ(counted_[pmc0], 160U) << "5 twice as long until it fits";
  EXPECT_EQ(statistic("pmu.perf.short_periods"), 5U);
  EXPECT_EQ(statistic("pmu.perf.lost"), 0U);
}

TEST_F(FailingHost, DriverThatTakesNoPeriodAtAllLosesTheEvent) {
  perf_.period_error = EINVAL;
  program({sampling(counter(pmc0, Counts::unmodelled, 0xE6, 0x01), 5)});
  ASSERT_TRUE(run(1us)) << failure_;
  EXPECT_EQ(statistic("pmu.perf.lost"), 1U);
  expect_one_warning({"nobody counts"});
}

// The host throttles an event that interrupts too often: it stops counting until its period is set.
TEST_F(FailingHost, ThrottledEventsCountOn) {
  perf_.throttles = true;
  for (int n = 0; n < 10; ++n) {
    counted_ = {};
    const std::uint64_t begin = truth();
    program({sampling(instructions(), 10'000)});
    run_to(pmc0, 10'000);
    EXPECT_EQ(counted_[pmc0], 10'000U);
    EXPECT_EQ(truth() - begin, 10'000U);
  }
  EXPECT_EQ(statistic("pmu.perf.windows"), 10U);
}

TEST_F(FailingHost, CounterWithoutAnyTimeIsTheEnginesUntilItHasSome) {
  perf_.share = 0;
  perf_.ns_per_instruction = 100'000;
  program({instructions()});
  ASSERT_TRUE(run(5us)) << failure_;
  EXPECT_EQ(statistic("pmu.perf.starved"), 0U) << "events that take turns wait, too";
  for (int n = 0; n < 300 && statistic("pmu.perf.starved") == 0; ++n) ASSERT_TRUE(run(5us)) << failure_;
  EXPECT_EQ(statistic("pmu.perf.starved"), 1U);
  EXPECT_EQ(statistic("pmu.perf.unseen_us"), rig_.cpu.retired * 100) << "all of its time";
  expect_engine_counts();
  expect_one_warning({"event r00c0", "no counter", "the engine counts", "nmi_watchdog"});
}

// A hybrid host has the event on some of its CPUs only.
TEST_F(FailingHost, ThreadOnACpuWithoutTheEventIsTheEnginesUntilItComesBack) {
  perf_.cpus = 0x0F;
  perf_.ns_per_instruction = 10'000'000;
  program({instructions()});
  expect_host_counts();
  perf_.on_cpu = 5;
  for (int n = 0; n < 300 && statistic("pmu.perf.starved") == 0; ++n) ASSERT_TRUE(run(1us)) << failure_;
  expect_engine_counts();
  perf_.on_cpu = 2;
  // An event's times also advance while the thread is outside the guest.
  perf_.pass_on_host(1'000);
  expect_host_counts();
  EXPECT_EQ(statistic("pmu.perf.starved"), 1U);
  expect_one_warning({"on a CPU that does not have it"});
}

}  // namespace
}  // namespace vmm::test
