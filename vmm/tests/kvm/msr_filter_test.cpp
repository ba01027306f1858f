#include "kvm/msr_filter.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace vmm {
namespace {

TEST(MsrFilter, TrapsTheGivenMsrsAndNoNeighbour) {
  const std::array ranges{MsrRange{.first = 0xC1, .count = 4}, MsrRange{.first = 0x186, .count = 4}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(filter);
  for (const std::uint32_t msr : {0xC1U, 0xC4U, 0x186U, 0x189U}) {
    EXPECT_TRUE(filter->traps(msr, MsrTrap::read)) << std::hex << msr;
    EXPECT_TRUE(filter->traps(msr, MsrTrap::write)) << std::hex << msr;
  }
  for (const std::uint32_t msr : {0xC0U, 0xC5U, 0x185U, 0x18AU, 0x10U}) {
    EXPECT_FALSE(filter->traps(msr, MsrTrap::read)) << std::hex << msr;
  }
}

TEST(MsrFilter, NeighboursShareOneKernelRange) {
  const std::array ranges{MsrRange{.first = 0xDC0, .count = 32}, MsrRange{.first = 0xC1, .count = 4},
                          MsrRange{.first = 0x680, .count = 32}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(filter);
  EXPECT_EQ(filter->native().ranges[0].base, 0xC1U);
  EXPECT_EQ(filter->native().ranges[0].nmsrs, 0xDE0U - 0xC1U);
  EXPECT_EQ(filter->native().ranges[1].nmsrs, 0U);
}

TEST(MsrFilter, FarApartRangesGetTheirOwn) {
  const std::array ranges{MsrRange{.first = 0, .count = 8}, MsrRange{.first = 0x40000000, .count = 3}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(filter);
  EXPECT_EQ(filter->native().ranges[1].base, 0x40000000U);
  EXPECT_TRUE(filter->traps(0x40000002, MsrTrap::write));
  EXPECT_FALSE(filter->traps(0x40000003, MsrTrap::write));
}

TEST(MsrFilter, ReadsAndWritesMayDiffer) {
  const std::array ranges{MsrRange{.first = 0x10, .count = 1, .trap = MsrTrap::read},
                          MsrRange{.first = 0x20, .count = 1}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(filter);
  EXPECT_TRUE(filter->traps(0x10, MsrTrap::read));
  EXPECT_FALSE(filter->traps(0x10, MsrTrap::write));
  EXPECT_TRUE(filter->traps(0x20, MsrTrap::write));
}

TEST(MsrFilter, MoreRangesThanKvmTakesAreRefused) {
  std::vector<MsrRange> ranges;
  for (std::uint32_t i = 0; i < KVM_MSR_FILTER_MAX_RANGES + 1; ++i) {
    ranges.push_back({.first = i << 20U, .count = 1});
  }
  const auto filter = MsrFilter::create(ranges);
  ASSERT_FALSE(filter);
  EXPECT_NE(filter.error().what.find("16 filter ranges"), std::string::npos) << filter.error().what;
}

TEST(MsrFilter, ARangeBeyondTheBitmapIsRefused) {
  const std::array ranges{MsrRange{.first = 0, .count = 0x600 * 8 + 1}};
  EXPECT_FALSE(MsrFilter::create(ranges));
}

}  // namespace
}  // namespace vmm
