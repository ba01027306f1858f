#include "report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gt_runner {
namespace {

using testing::HasSubstr;

const std::vector<TestResult> results{
    {.name = "A.Passes", .verdict = Verdict::passed, .checks = 3, .seconds = 0.25},
    {.name = "A.Fails", .verdict = Verdict::failed, .failures = {"x.cpp:1: a < b"}, .checks = 2},
    {.name = "A.Skips", .verdict = Verdict::skipped, .reason = "no counts"},
};

TEST(Report, OneLineForEachTestThenItsFailures) {
  EXPECT_EQ(describe(results[0]), "PASS A.Passes (3 checks, 0.25 s)");
  EXPECT_EQ(describe(results[1]), "FAIL A.Fails (2 checks, 0.00 s)\n  x.cpp:1: a < b");
  EXPECT_EQ(describe(results[2]), "SKIP A.Skips: no counts");
}

TEST(Report, TheLastLineCounts) {
  EXPECT_EQ(describe(count(results)), "1 passed, 1 failed, 1 skipped");
  EXPECT_EQ(describe(Totals{.passed = 2}), "2 passed, 0 failed");
}

TEST(Report, JunitEscapesWhatTheGuestSaid) {
  const std::string xml = junit(results, "skylake.clock");
  EXPECT_THAT(xml, HasSubstr("tests=\"3\" failures=\"1\" skipped=\"1\""));
  EXPECT_THAT(xml, HasSubstr("a &lt; b"));
}

}  // namespace
}  // namespace gt_runner
