// The runner's results for tests that are wrong in known ways, each in a machine of its own. Needs /dev/kvm, no PMU.
#include "test_run.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <tuple>

#include "gt/protocol.hpp"
#include "test_kernel.hpp"

namespace gt_runner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class KvmBrokenTests : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/kvm", R_OK | W_OK) != 0) GTEST_SKIP() << "no usable /dev/kvm";
  }

  static TestResult run(const std::string& name, std::chrono::milliseconds limit = std::chrono::seconds{20}) {
    const auto kernel = TestKernel::open(BROKEN_TESTS_KERNEL);
    if (!kernel) return {.reason = kernel.error().what};
    for (const gt_runner::Test& test : kernel->tests()) {
      if (test.name != name) continue;
      auto result = run_test(*kernel, test, {.time_limit = limit});
      return result ? *result : TestResult{.reason = result.error().what};
    }
    return {.reason = "no such test"};
  }
};

TEST_F(KvmBrokenTests, AGoodTestPasses) {
  const TestResult r = run("Good.Passes");
  EXPECT_EQ(r.verdict, Verdict::passed) << r.reason;
  EXPECT_EQ(r.checks, 1U);
  EXPECT_THAT(r.failures, IsEmpty());
}

TEST_F(KvmBrokenTests, LogLinesReachTheReader) {
  EXPECT_THAT(run("Good.Logs").log, ElementsAre("a line for the reader"));
}

TEST_F(KvmBrokenTests, ASkipSaysWhy) {
  const TestResult r = run("Good.Skips");
  EXPECT_EQ(r.verdict, Verdict::skipped);
  EXPECT_EQ(r.reason, "nothing to judge by");
}

TEST_F(KvmBrokenTests, ATestWithoutAnyCheckFails) {
  const TestResult r = run("Broken.MakesNoCheck");
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_EQ(r.reason, "the test made no check");
}

TEST_F(KvmBrokenTests, AFailedComparisonShowsBothValuesAndTheTestGoesOn) {
  const TestResult r = run("Broken.ComparesUnequal");
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_EQ(r.checks, 2U);
  EXPECT_THAT(r.failures, ElementsAre(HasSubstr("0x12U is 0x12, expected 0x13")));
  EXPECT_THAT(r.failures, ElementsAre(HasSubstr("broken_tests.cpp:")));
}

TEST_F(KvmBrokenTests, AFailedRequirementEndsTheTest) {
  const TestResult r = run("Broken.RequiresAndStops");
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_THAT(r.failures, SizeIs(1));
}

TEST_F(KvmBrokenTests, AnUnexpectedFaultIsReportedWithItsPlace) {
  const TestResult r = run("Broken.Faults");
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_THAT(r.failures, Contains(HasSubstr("unexpected vector 0xe")));
  EXPECT_THAT(r.failures, Contains(HasSubstr("CR2 0x400000000000")));
}

TEST_F(KvmBrokenTests, ATripleFaultFails) { EXPECT_EQ(run("Broken.TripleFaults").reason, "triple fault"); }

TEST_F(KvmBrokenTests, ATestThatNeverEndsIsStopped) {
  EXPECT_EQ(run("Broken.NeverEnds", std::chrono::milliseconds{300}).reason, "no end within the time limit");
  EXPECT_EQ(run("Broken.SleepsForever", std::chrono::milliseconds{300}).reason, "no end within the time limit");
}

TEST_F(KvmBrokenTests, HostileMessagesFailTheTestAndNothingElse) {
  EXPECT_EQ(run("Broken.SendsAnAddressOutsideRam").reason, "the guest's message at 0xf0000000 is not in its RAM");
  EXPECT_EQ(run("Broken.SendsAnUnknownCommand").reason, "the guest sent command 77");
  EXPECT_THAT(run("Broken.SendsTextWithoutAnEnd").failures, ElementsAre(HasSubstr("????")));
}

TEST_F(KvmBrokenTests, ReportsWithoutEndDoNotPileUp) {
  const TestResult r = run("Broken.ReportsWithoutEnd", std::chrono::milliseconds{1000});
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_LE(r.failures.size(), 200U);
  EXPECT_GT(r.failures.size(), 1U);
}

TEST_F(KvmBrokenTests, AnUnmetNeedSkipsWithItsReason) {
  const TestResult r = run("Needs.ExactCounts");
  EXPECT_EQ(r.verdict, Verdict::skipped);
  EXPECT_EQ(r.reason, "needs exact counts, source 'clock' estimates");
}

// With KVM's own PMU the tests run, but those of features that only our PMU has are skipped, not failed.
TEST(UnmetNeed, KvmsOwnPmuHasNeitherPebsNorUncore) {
  EXPECT_EQ(unmet_need({.needs = gt::need_counts}, "kvm", Port::kvm), "");
  EXPECT_EQ(unmet_need({.needs = gt::need_records}, "kvm", Port::kvm), "needs PEBS, source 'kvm' has KVM's own PMU");
  EXPECT_EQ(unmet_need({.needs = gt::need_uncore}, "kvm", Port::kvm),
            "needs an uncore, source 'kvm' has KVM's own PMU");
  for (const std::string_view source : {"clock", "perf", "exact", "step"})
    EXPECT_EQ(unmet_need({.needs = gt::need_records | gt::need_uncore}, source, Port::kvm), "") << source;
}

TEST(UnmetNeed, OneOfTheTwoTimes) {
  using enum vmm::TimeModel;
  for (const auto& [needs, met, unmet] : {std::tuple{gt::need_instruction_time, instructions, pipeline},
                                          std::tuple{gt::need_pipeline_time, pipeline, instructions}}) {
    EXPECT_EQ(unmet_need({.needs = needs}, "exact", Port::soft, met), "");
    EXPECT_NE(unmet_need({.needs = needs}, "exact", Port::soft, unmet), "");
  }
}

TEST(UnmetNeed, TheClockCountsTimeOnly) {
  EXPECT_EQ(unmet_need({.needs = gt::need_all_events}, "clock", Port::kvm),
            "needs all events, source 'clock' counts time only");
  for (const std::string_view source : {"perf", "exact", "step", "kvm"})
    EXPECT_EQ(unmet_need({.needs = gt::need_all_events}, source, Port::kvm), "") << source;
}

}  // namespace
}  // namespace gt_runner
