#include "vcpu/tsc_scale.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace vmm::test {
namespace {

constexpr std::uint32_t host_khz = 2'899'886;
constexpr std::uint64_t uptime = host_khz * 1000ULL * 86'400 * 30;

/// Samples of a TSC that is the host's, scaled by `scale`.
std::vector<TscLook> looks_at(TscScale scale, std::uint64_t begin = uptime) {
  std::vector<TscLook> looks;
  for (std::uint64_t n = 0; n < 4; ++n) {
    const std::uint64_t before = begin + n * 10'000;
    looks.push_back({.before = before, .guest = scale.of(before + 700), .after = before + 1500});
  }
  return looks;
}

TEST(TscScale, AnUnscaledTscIsTheHosts) {
  EXPECT_EQ(TscScale::find(host_khz, host_khz, looks_at({})), TscScale{});
  EXPECT_EQ(TscScale{}.of(uptime), uptime);
}

TEST(TscScale, KvmDoesNotScaleWhatIsWithinItsTolerance) {
  EXPECT_EQ(TscScale::find(host_khz, host_khz + 100, looks_at({})), TscScale{});
}

TEST(TscScale, IntelsAndAmdsFractionsAreToldApart) {
  for (const std::uint32_t guest_khz : {1'000'000U, 2'000'000U, 3'600'001U, 11'000'000U})
    for (const unsigned bits : {32U, 48U}) {
      __extension__ using wide = unsigned __int128;
      const TscScale scale{static_cast<std::uint64_t>((wide{guest_khz} << bits) / host_khz), bits};
      const auto found = TscScale::find(host_khz, guest_khz, looks_at(scale));
      ASSERT_TRUE(found) << guest_khz << ' ' << bits;
      EXPECT_EQ(*found, scale) << guest_khz << ' ' << bits;
      const auto expected = static_cast<std::uint64_t>(wide{uptime} * guest_khz / host_khz);
      EXPECT_NEAR(static_cast<double>(found->of(uptime)), static_cast<double>(expected), 0.001 * host_khz * 1000);
    }
}

TEST(TscScale, ATscThatFollowsNoScaleHasNone) {
  auto looks = looks_at({});
  for (TscLook& look : looks) look.guest += 100'000;
  EXPECT_FALSE(TscScale::find(host_khz, host_khz, looks));
  EXPECT_FALSE(TscScale::find(host_khz, 1'000'000, looks));
  EXPECT_FALSE(TscScale::find(0, 1'000'000, looks_at({}))) << "KVM did not tell the host's rate";
  looks = looks_at({});
  looks.back().guest = looks.back().after + 1;
  EXPECT_FALSE(TscScale::find(host_khz, host_khz, looks)) << "all of them count";
}

TEST(TscScale, ByRatesLengthsOfTimeAreRight) {
  EXPECT_EQ(TscScale::by_rates(host_khz, host_khz), TscScale{});
  EXPECT_EQ(TscScale::by_rates(0, 1'000'000), TscScale{});
  EXPECT_EQ(TscScale::by_rates(1'000'000, 3'500'000).of(1'000), 3'500U);
}

}  // namespace
}  // namespace vmm::test
