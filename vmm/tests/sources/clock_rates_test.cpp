#include "sources/clock_rates.hpp"

#include <gtest/gtest.h>

namespace vmm::test {
namespace {

using vpmu::Counts;
using vpmu::EventSpec;

constexpr ClockRate nothing{};
constexpr ClockRate time_on_the_vcpu{ClockBasis::time, 0};
constexpr ClockRate rate(std::uint32_t n) { return {ClockBasis::rate, n}; }

TEST(ClockRates, TakeClocksFromTime) {
  for (const Counts clock : {Counts::cycles, Counts::ref_cycles, Counts::bus_cycles})
    EXPECT_EQ(clock_rate(clock), time_on_the_vcpu);
}

TEST(ClockRates, StateARateForEachCountThatIsNotAClock) {
  EXPECT_EQ(clock_rate(Counts::instructions), rate(1000));
  EXPECT_EQ(clock_rate(Counts::branches), rate(200));
}

TEST(ClockRates, DeliverNothingWithoutARate) {
  for (const Counts counts : {Counts::unmodelled, Counts::frontend, Counts::offcore, Counts::offcore_1}) {
    EXPECT_EQ(clock_rate(counts), nothing);
    EXPECT_EQ(clock_rate(counts, EventSpec{.cmask = 1, .inv = true}), nothing);
  }
}

// Rule P18: INV with a CMASK that no cycle reaches counts every cycle.
TEST(ClockRates, TakeTheFormsOfPreciseCyclesFromTime) {
  EXPECT_EQ(clock_rate(Counts::instructions, EventSpec{.cmask = 16, .inv = true}), time_on_the_vcpu);
  EXPECT_EQ(clock_rate(Counts::instructions, EventSpec{.cmask = 10, .inv = true}), time_on_the_vcpu);
}

// Rule C4, with events spread evenly over the cycles.
TEST(ClockRates, CountCyclesThatReachTheCmask) {
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.cmask = 1}), rate(250));
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.cmask = 2}), nothing);
  EXPECT_EQ(clock_rate(Counts::uops_issued, EventSpec{.cmask = 1}), time_on_the_vcpu);
  EXPECT_EQ(clock_rate(Counts::uops_issued, EventSpec{.cmask = 2}), rate(200));
}

TEST(ClockRates, CountTheOtherCyclesWithInv) {
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.cmask = 1, .inv = true}), rate(750));
  EXPECT_EQ(clock_rate(Counts::uops_issued, EventSpec{.cmask = 1, .inv = true}), nothing);
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.inv = true}), rate(250)) << "INV does nothing when CMASK is 0";
}

TEST(ClockRates, CountChangesWithEdge) {
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.cmask = 1, .edge = true}), rate(250));
  EXPECT_EQ(clock_rate(Counts::loads, EventSpec{.cmask = 1, .edge = true, .inv = true}), rate(250));
  EXPECT_EQ(clock_rate(Counts::cycles, EventSpec{.cmask = 1, .edge = true}), nothing) << "cycles never stop";
}

}  // namespace
}  // namespace vmm::test
