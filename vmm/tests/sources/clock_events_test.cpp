#include "sources/clock_events.hpp"

#include <gtest/gtest.h>

namespace vmm::test {
namespace {

using vpmu::Counts;
using vpmu::EventSpec;

TEST(ClockEvents, AreClocksAndInstructions) {
  for (const Counts counts : {Counts::cycles, Counts::ref_cycles, Counts::bus_cycles, Counts::instructions})
    EXPECT_TRUE(clock_counts(counts));
}

TEST(ClockEvents, AreNoOthers) {
  unsigned counted = 0;
  for (const vpmu::CountsDesc& desc : vpmu::counts_rows::rows) counted += clock_counts(desc.counts) ? 1 : 0;
  EXPECT_EQ(counted, 5U) << "cycles, two reference clocks, that of a core alone, and instructions";
  for (const Counts counts : {Counts::unmodelled, Counts::uops_retired, Counts::branches, Counts::loads, Counts::never})
    EXPECT_FALSE(clock_counts(counts));
}

// Rule P18: INV with a CMASK that no cycle reaches counts every cycle.
TEST(ClockEvents, HaveTheFormsOfPreciseCycles) {
  for (const Counts counts : {Counts::instructions, Counts::uops_retired, Counts::uops_issued}) {
    EXPECT_TRUE(clock_counts(counts, EventSpec{.cmask = 16, .inv = true}));
    EXPECT_TRUE(clock_counts(counts, EventSpec{.cmask = 10, .inv = true}));
  }
  EXPECT_FALSE(clock_counts(Counts::loads, EventSpec{.cmask = 16, .inv = true}));
}

// Rule C4, with one event in each cycle.
TEST(ClockEvents, HaveTheFormsWhoseConditionHoldsInEachCycle) {
  EXPECT_TRUE(clock_counts(Counts::cycles, EventSpec{.cmask = 1}));
  EXPECT_FALSE(clock_counts(Counts::cycles, EventSpec{.cmask = 1, .inv = true}));
  EXPECT_FALSE(clock_counts(Counts::instructions, EventSpec{.cmask = 2}));
  EXPECT_TRUE(clock_counts(Counts::instructions, EventSpec{.cmask = 2, .inv = true}));
  EXPECT_TRUE(clock_counts(Counts::instructions, EventSpec{.inv = true})) << "INV does nothing when CMASK is 0";
  EXPECT_FALSE(clock_counts(Counts::cycles, EventSpec{.cmask = 1, .edge = true})) << "cycles never stop";
}

}  // namespace
}  // namespace vmm::test
