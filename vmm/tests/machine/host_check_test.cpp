// What measurements of a host's KVM say about it.
#include "machine/host_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace vmm {
namespace {

using Verdict = Finding::Verdict;

constexpr SpeedComparison fast{.guest = 430e6, .host = 455e6}, slow{.guest = 1.9e6, .host = 455e6};

/// A probe that gives these results one after the other, and the last one again and again.
struct FakeProbe {
  std::vector<Result<SpeedComparison>> results;
  unsigned calls{};

  std::function<Result<SpeedComparison>()> measure() {
    return [this] { return results[std::min<std::size_t>(calls++, results.size() - 1)]; };
  }
};

TEST(JudgeSpeed, TakesTheFirstGoodMeasurement) {
  FakeProbe probe{{fast}};
  const Finding found = judge_speed(probe.measure());
  EXPECT_EQ(found.verdict, Verdict::good);
  EXPECT_EQ(found.finding, "guest 430.0, host 455.0 million instructions per second");
  EXPECT_EQ(probe.calls, 1U);
}

/// As on the first command after a host's boot.
TEST(JudgeSpeed, ASlowMeasurementIsNoVerdict) {
  for (std::size_t slow_ones = 1; slow_ones < max_measurements; ++slow_ones) {
    FakeProbe probe{std::vector<Result<SpeedComparison>>(slow_ones, slow)};
    probe.results.emplace_back(fast);
    const Finding found = judge_speed(probe.measure());
    EXPECT_EQ(found.verdict, Verdict::good) << slow_ones;
    EXPECT_EQ(found.finding, "guest 430.0, host 455.0 million instructions per second") << slow_ones;
    EXPECT_EQ(probe.calls, slow_ones + 1);
  }
}

TEST(JudgeSpeed, AKvmThatIsAlwaysSlowEmulates) {
  FakeProbe probe{{SpeedComparison{.guest = 1.5e6, .host = 455e6}, slow, SpeedComparison{.guest = 1e6, .host = 455e6}}};
  const Finding found = judge_speed(probe.measure());
  EXPECT_EQ(found.verdict, Verdict::unfit);
  EXPECT_EQ(found.finding,
            "guest 1.9, host 455.0 million instructions per second, the best of 5 measurements: this KVM emulates "
            "ring-0 code");
  EXPECT_EQ(probe.calls, max_measurements);
}

TEST(JudgeSpeed, AProbeThatFailsOnceIsRunAgain) {
  FakeProbe probe{{host_error("the speed probe guest did not finish its loop"), fast}};
  EXPECT_EQ(judge_speed(probe.measure()).verdict, Verdict::good);
  FakeProbe fails{{host_error("no VM")}};
  const Finding found = judge_speed(fails.measure());
  EXPECT_EQ(found.verdict, Verdict::unfit);
  EXPECT_EQ(found.finding, "no VM");
  EXPECT_EQ(fails.calls, max_measurements);
}

}  // namespace
}  // namespace vmm
