#include <gtest/gtest.h>

#include "pebs_session.hpp"

// SDM 2B RDPMC.

namespace vpmu::test {
namespace {

constexpr std::uint32_t fixed_type = 1U << 30;

TEST(Rdpmc, ReadsEveryCounterOfBothKinds) {
  PebsSession s;
  for (unsigned i = 0; i < 4; ++i) s.write(msr::IA32_A_PMC0 + i, 0xF000'0000'0000 + i);
  for (unsigned n = 0; n < 3; ++n) s.write(msr::IA32_FIXED_CTR0 + n, 0xE000'0000'0000 + n);
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(s.pmu.rdpmc(i, 0, false), 0xF000'0000'0000 + i);
  for (unsigned n = 0; n < 3; ++n) EXPECT_EQ(s.pmu.rdpmc(fixed_type | n, 0, false), 0xE000'0000'0000 + n);
}

TEST(Rdpmc, FaultsForCountersThatAreNotThere) {
  const Pmu with_sibling{PmuConfig{}};
  const Pmu alone{PmuConfig{.smt = false}};
  EXPECT_FALSE(with_sibling.rdpmc(4, 0, true));
  EXPECT_TRUE(alone.rdpmc(7, 0, true));
  EXPECT_FALSE(alone.rdpmc(8, 0, true));
  for (const Pmu* pmu : {&with_sibling, &alone}) {
    EXPECT_FALSE(pmu->rdpmc(fixed_type | 3, 0, true));
    EXPECT_FALSE(pmu->rdpmc(0x3FFF'FFFF, 0, true));
    EXPECT_FALSE(pmu->rdpmc(0xFFFF'FFFF, 0, true));
  }
}

// Bit 31 selected fast reads on another family of processors; here it is part of the index.
TEST(Rdpmc, FaultsWithBit31) {
  const Pmu pmu{PmuConfig{}};
  EXPECT_FALSE(pmu.rdpmc(0x8000'0000, 0, true));
  EXPECT_FALSE(pmu.rdpmc(0x8000'0000 | fixed_type, 0, true));
}

TEST(Rdpmc, OutsideRing0NeedsPce) {
  const Pmu pmu{PmuConfig{}};
  for (unsigned cpl = 1; cpl <= 3; ++cpl) {
    EXPECT_FALSE(pmu.rdpmc(0, cpl, false));
    EXPECT_TRUE(pmu.rdpmc(0, cpl, true));
  }
  EXPECT_TRUE(pmu.rdpmc(0, 0, false));
}

TEST(Rdpmc, CounterOfAPebsSessionIsBetweenReloadAndZero) {
  PebsSession s;
  s.start_pebs(0, loads, 3);
  s.run(1, 5);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.pmu.rdpmc(0, 0, false), minus(2));
}

}  // namespace
}  // namespace vpmu::test
