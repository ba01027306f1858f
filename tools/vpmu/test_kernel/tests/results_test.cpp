#include "test_kernel/results.hpp"

#include <gtest/gtest.h>

namespace vmm::tool {
namespace {

constexpr std::string_view good =
    "CHECK\tlog.driver\tpass\tSkylake events\tSkylake events\nCHECK\tbts\tskip\tno BTS\t\nEND\t2\n";

ModelResult well_ended(std::string_view output) {
  return result_of("skylake",
                   {.output = std::string{output}, .messages = "", .how = "exit code 0", .is_success = true});
}

/// The complaint about the run as a whole.
std::string complaint_about(std::string_view output) {
  const ModelResult result = well_ended(output);
  return result.checks.front().outcome == Outcome::fail ? result.checks.front().seen : "";
}

TEST(CheckerLines, AreTheChecksBehindThatOfTheRun) {
  const ModelResult result = well_ended(good);
  EXPECT_EQ(result.model, "skylake");
  ASSERT_EQ(result.checks.size(), 3U);
  EXPECT_EQ(result.checks[0].name, run_check);
  EXPECT_EQ(result.checks[0].outcome, Outcome::pass);
  EXPECT_EQ(result.checks[1], (CheckResult{"log.driver", Outcome::pass, "Skylake events", "Skylake events"}));
  EXPECT_EQ(result.checks[2], (CheckResult{"bts", Outcome::skip, "no BTS", ""}));
}

TEST(CheckerLines, ThatAreMissingFailTheRun) {
  EXPECT_EQ(complaint_about(""), "exit code 0; 0 checks, and no END line");
  EXPECT_EQ(complaint_about("CHECK\tbts\tpass\t1\t1\n"), "exit code 0; 1 checks, and no END line");
  EXPECT_EQ(complaint_about("CHECK\tbts\tpass\t1\t1\nEND\t2\n"), "exit code 0; 1 checks, and an END line that says 2");
}

TEST(CheckerLines, ThatCannotBeReadFailTheRunAndKeepTheOthers) {
  for (const std::string_view bad :
       {"CHECK\tbts\tpass\t1\n", "CHECK\tbts\tpass\t1\t1\t1\n", "CHECK\t\tpass\t1\t1\n", "CHECK\ta b\tpass\t1\t1\n",
        "CHECK\tbts\tgood\t1\t1\n", "CHECK bts pass 1 1\n", "hello\n", "CHECK\t<bts>\tpass\t1\t1\n", "END\n",
        "END\t1x\n", "END\t\n", "END\t-1\n"}) {
    const ModelResult result = well_ended("CHECK\tlbr\tpass\t1\t1\n" + std::string{bad} + "END\t1\n");
    EXPECT_EQ(result.checks.front().outcome, Outcome::fail) << bad;
    ASSERT_EQ(result.checks.size(), 2U) << bad;
    EXPECT_EQ(result.checks.back().name, "lbr") << bad;
  }
}

TEST(CheckerLines, AreOneForEachCheckAndNoneForTheRun) {
  EXPECT_EQ(complaint_about("CHECK\tbts\tpass\t1\t1\nCHECK\tbts\tfail\t1\t2\nEND\t2\n"),
            "exit code 0; the check bts twice");
  EXPECT_EQ(complaint_about("CHECK\t" + std::string{run_check} + "\tpass\t1\t1\nEND\t1\n"),
            "exit code 0; the check run twice");
  EXPECT_EQ(complaint_about(std::string{good} + "CHECK\tlbr\tpass\t1\t1\n"),
            "exit code 0; lines after the last one: CHECK?lbr?pass?1?1");
}

TEST(CheckerLines, OfManyAreBounded) {
  std::string output;
  for (int i = 0; i < 2000; ++i) output += "CHECK\tc" + std::to_string(i) + "\tpass\t\t\n";
  EXPECT_EQ(well_ended(output).checks.size(), 1001U);
  EXPECT_LE(well_ended("CHECK\tlong\tpass\t" + std::string(100'000, 'x') + "\t\nEND\t1\n").checks[1].expected.size(),
            1000U);
}

TEST(GuestEnd, ThatIsNoGoodOneFailsTheRunWithWhatWasSaid) {
  const ModelResult result = result_of(
      "haswell",
      {.output = std::string{good}, .messages = "vpmu exec: a\x1b[31m\nb", .how = "signal 11", .is_success = false});
  EXPECT_EQ(result.checks.front().outcome, Outcome::fail);
  EXPECT_EQ(result.checks.front().seen, "signal 11; vpmu exec: a?[31m b");
  EXPECT_EQ(result.checks.size(), 3U);
}

TEST(KernelReport, CountsItsChecks) {
  const KernelReport report{.kernel = "k", .version = "6.1", .models = {well_ended(good), well_ended("")}};
  EXPECT_EQ(count(report, Outcome::pass), 2U);
  EXPECT_EQ(count(report, Outcome::fail), 1U);
  EXPECT_EQ(count(report, Outcome::skip), 1U);
  EXPECT_TRUE(has_run(report));
  EXPECT_FALSE(has_run({.kernel = "k", .version = "6.1", .models = {well_ended("")}}));
}

}  // namespace
}  // namespace vmm::tool
