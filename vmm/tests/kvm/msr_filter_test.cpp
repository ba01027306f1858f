#include "kvm/msr_filter.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
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

// KVM copies whole words of a bitmap: all must be allocated, and those of the other filter's range must be its words.
TEST(MsrFilter, BitmapsAreWholeWords) {
  constexpr std::uint64_t word = 0x1122'3344'5566'7788;
  std::vector<std::uint64_t> bitmap{word};
  kvm_msr_filter theirs{};
  theirs.ranges[0] = {
      .flags = KVM_MSR_FILTER_READ, .nmsrs = 3, .base = 0x10, .bitmap = reinterpret_cast<std::uint8_t*>(bitmap.data())};
  auto filter = MsrFilter::create(std::array{MsrRange{.first = 0xC1, .count = 65}});
  ASSERT_TRUE(filter);
  ASSERT_TRUE(filter->add_others(theirs));
  std::array<std::uint64_t, 2> copy{};
  std::memcpy(copy.data(), filter->native().ranges[0].bitmap, sizeof copy);
  EXPECT_EQ(copy, (std::array<std::uint64_t, 2>{0, ~1ULL}));
  std::memcpy(copy.data(), filter->native().ranges[1].bitmap, sizeof word);
  EXPECT_EQ(copy[0], word);
}

TEST(MsrFilter, WhatKvmRefusesIsRefused) {
  kvm_msr_filter none{};
  none.flags = KVM_MSR_FILTER_DEFAULT_DENY;
  std::uint64_t bitmap = 0;
  kvm_msr_filter flags{};
  flags.flags = 2;
  flags.ranges[0] = {
      .flags = KVM_MSR_FILTER_READ, .nmsrs = 1, .base = 0x10, .bitmap = reinterpret_cast<std::uint8_t*>(&bitmap)};
  for (const kvm_msr_filter* theirs : {&none, &flags}) {
    auto filter = MsrFilter::create({});
    ASSERT_TRUE(filter);
    const auto done = filter->add_others(*theirs);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().system_errno, EINVAL);
    EXPECT_FALSE(filter->traps(0x10, MsrTrap::read));
  }
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

// Our filter traps 10H to 1FH and 40H to 4FH, which KVM gets as one range with a gap. The other filter's range covers
// ours, and traps MSRs before, between and after them.
TEST(MsrFilter, AnotherFilterTrapsBesideOurs) {
  auto ours =
      MsrFilter::create(std::array{MsrRange{.first = 0x10, .count = 0x10}, MsrRange{.first = 0x40, .count = 0x10}});
  const auto theirs = MsrFilter::create(std::array{
      MsrRange{.first = 0x8, .count = 1}, MsrRange{.first = 0x35, .count = 1}, MsrRange{.first = 0x606, .count = 1}});
  ASSERT_TRUE(ours && theirs);
  ASSERT_TRUE(ours->add_others(theirs->native()));
  for (const std::uint32_t msr : {0x8U, 0x10U, 0x1FU, 0x35U, 0x40U, 0x4FU, 0x606U}) {
    EXPECT_TRUE(ours->traps(msr, MsrTrap::read)) << std::hex << msr;
    EXPECT_TRUE(ours->traps(msr, MsrTrap::write)) << std::hex << msr;
  }
  for (const std::uint32_t msr : {0x9U, 0x20U, 0x34U, 0x36U, 0x50U, 0x605U, 0x607U})
    EXPECT_FALSE(ours->traps(msr, MsrTrap::read)) << std::hex << msr;
  kvm_msr_filter nothing_else{};
  std::uint64_t allowed = ~0ULL;
  nothing_else.flags = KVM_MSR_FILTER_DEFAULT_DENY;
  nothing_else.ranges[0] = {
      .flags = KVM_MSR_FILTER_READ, .nmsrs = 1, .base = 0x700, .bitmap = reinterpret_cast<std::uint8_t*>(&allowed)};
  ASSERT_TRUE(ours->add_others(nothing_else));
  EXPECT_TRUE(ours->traps(0x9999, MsrTrap::read)) << "its default is to deny";
  auto full = MsrFilter::create({});
  kvm_msr_filter many{};
  std::uint64_t none = 0;  // KVM copies whole words
  for (auto& range : many.ranges)
    range = {.flags = KVM_MSR_FILTER_READ, .nmsrs = 1, .base = 0x35, .bitmap = reinterpret_cast<std::uint8_t*>(&none)};
  ASSERT_TRUE(full->add_others(many));
  EXPECT_FALSE(full->add_others(theirs->native()));
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
