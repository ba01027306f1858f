#include "perf/perf_calibration.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "fakes/fake_perf_host.hpp"
#include "pmu/source_choice.hpp"

namespace vmm::test {
namespace {

class Calibration : public testing::Test {
 protected:
  /// The line that a user sees when calibration refuses the host.
  std::string refusal() {
    const auto found = calibrate(*perf.host());
    EXPECT_FALSE(found);
    return found ? "" : describe(found.error());
  }
  static void expect_says(const std::string& line, std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) EXPECT_NE(line.find(part), std::string::npos) << line;
  }

  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  FakePerf perf{guest, cpu};
};

TEST_F(Calibration, GoodHostPasses) {
  perf.skid = 100;
  const auto found = calibrate(*perf.host());
  ASSERT_TRUE(found) << describe(found.error());
  EXPECT_EQ(found->late_instructions, 100U);
  EXPECT_EQ(found->late_cycles, 100U);
  EXPECT_EQ(found->margin_instructions, 200U) << "twice the latest that was seen";
  EXPECT_TRUE(found->lands);
  EXPECT_FALSE(found->is_nearest);
  EXPECT_EQ(perf.running(), 0U) << "nothing is left behind";
}

TEST_F(Calibration, EachKindOfEventHasItsOwnMargin) {
  perf.skid = 100;
  perf.skid_of_cycles = 250;
  const auto found = calibrate(*perf.host());
  ASSERT_TRUE(found) << describe(found.error());
  EXPECT_EQ(found->late_instructions, 100U);
  EXPECT_EQ(found->late_cycles, 350U);
  EXPECT_EQ(found->margin_instructions, 200U);
  EXPECT_EQ(found->margin_cycles, 700U);
}

TEST_F(Calibration, ThrottledEventsAreSetGoingAgain) {
  perf.throttles = true;
  const auto found = calibrate(*perf.host());
  ASSERT_TRUE(found) << describe(found.error());
}

TEST_F(Calibration, MarginIsNeverShorterThanTheVendorsSkid) {
  auto found = calibrate(*perf.host());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->margin_instructions, 128U);
  perf.host_cpu = {.vendor = HostVendor::amd, .generation = {}};
  found = calibrate(*perf.host());
  ASSERT_TRUE(found) << describe(found.error());
  EXPECT_EQ(found->margin_instructions, 10'000U);
  EXPECT_TRUE(found->is_nearest);
  expect_says(describe(*found), {"nearest events"});
}

TEST_F(Calibration, SkidTooLongForTheEngineCostsThePlaceOfSamples) {
  perf.skid = max_margin;
  const auto found = calibrate(*perf.host());
  ASSERT_TRUE(found) << describe(found.error());
  EXPECT_FALSE(found->lands);
  EXPECT_EQ(found->margin_instructions, max_margin);
  expect_says(describe(*found), {"too late"});
}

// Seen on nested AMD hosts.
TEST_F(Calibration, HostThatCountsItselfIsRefused) {
  perf.counts_host = true;
  expect_says(refusal(), {"count the host, too", "1000000 instructions", "AMD", "count by the source exact"});
}

TEST_F(Calibration, WrongCountsAreRefused) {
  perf.loses_each = 1000;
  expect_says(refusal(), {"counts wrong", "999000 for a loop of 1000000 instructions"});
  perf.loses_each = 0;
  perf.counts_twice_each = 100;
  expect_says(refusal(), {"counts wrong", "1010000 for a loop of 1000000 instructions"});
}

TEST_F(Calibration, SharedCountersAreRefused) {
  perf.share = 50;
  expect_says(refusal(), {"shared", "nmi_watchdog"});
}

TEST_F(Calibration, PmuThatCannotInterruptIsRefused) {
  perf.interrupts = false;
  expect_says(refusal(), {"do not interrupt"});
}

TEST_F(Calibration, UnknownCpuIsRefused) {
  perf.host_cpu = {};
  expect_says(refusal(), {"the events of this host's CPU are not known"});
  EXPECT_TRUE(perf.opened.empty());
}

TEST_F(Calibration, EachFailureOfPerfHasItsMessageAndAdvice) {
  const std::map<int, std::vector<std::string_view>> said{
      {EACCES, {"may not count", "perf_event_paranoid", "CAP_PERFMON"}},
      {EPERM, {"forbidden", "seccomp", "CAP_PERFMON"}},
      {ENOENT, {"no PMU", "virtual PMU"}},
      {ENODEV, {"no PMU", "virtual PMU"}},
      {EOPNOTSUPP, {"does not count guests", "mediated"}},
      {EBUSY, {"taken", "mediated"}},
      {EMFILE, {"open files", "ulimit"}},
      {EINVAL, {"does not take this event", "newer"}},
      {EIO, {"perf_event_open failed", "log"}}};
  std::set<std::string> messages;
  for (const auto& [error, parts] : said) {
    perf.open_error = error;
    const std::string line = refusal();
    for (const std::string_view part : parts) EXPECT_NE(line.find(part), std::string::npos) << line;
    messages.insert(line);
  }
  EXPECT_EQ(messages.size(), said.size());
}

TEST_F(Calibration, AutoTakesPerfWhereItPasses) {
  const auto host = perf.host();
  const SourceChoice choice = choose_source(host.get());
  EXPECT_EQ(choice.name, "perf");
  expect_says(choice.why, {"perf:", "not clock", "exact slows", "step is for tests"});
}

TEST_F(Calibration, AutoTakesTheClockElseAndSaysWhy) {
  perf.open_error = ENOENT;
  const auto host = perf.host();
  const SourceChoice choice = choose_source(host.get());
  EXPECT_EQ(choice.name, "clock");
  expect_says(choice.why, {"clock,", "not perf: this host has no PMU", "exact slows"});
  EXPECT_EQ(choose_source(nullptr).name, "exact");
  expect_says(choose_source(nullptr).why, {"not perf: the guest does not run on the host's processor", "not clock"});
}

}  // namespace
}  // namespace vmm::test
