#include <gtest/gtest.h>

#include "pebs_session.hpp"

namespace vpmu::test {
namespace {

using S = PebsSession;

// Rule O1.
TEST(Overflow, IsTheStepFromAllOnesToZero) {
  S s;
  s.start(0, instructions, 2);
  s.run(1, 1);
  EXPECT_EQ(s.pmc(0), 0xFFFF'FFFF'FFFFU);
  EXPECT_EQ(s.status(), 0U);
  s.run(2, 2);
  EXPECT_EQ(s.pmc(0), 0U);
  EXPECT_EQ(s.status(), 1U);
}

// Rule O1: an add that crosses 0 is one overflow, the rest stays in the counter.
TEST(Overflow, OfSeveralEventsAtOnceKeepsTheRemainder) {
  S s;
  s.start(0, with_interrupt(core_cycles), 10);
  Retirement r = s.plain(1);
  r.cycles = 14;
  s.retire(r);
  EXPECT_EQ(s.pmc(0), 4U);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.statistics().overflows, 1U);
}

// Rule O2, and the bit positions of SDM 3B figure 18-11.
TEST(Overflow, SetsTheStatusBitOfEachCounterWithoutAnyInterrupt) {
  for (unsigned i = 0; i < 4; ++i) {
    S s;
    s.start(i, instructions, 1);
    s.run(1, 1);
    EXPECT_EQ(s.status(), bit(i));
    EXPECT_EQ(s.env.pmis, 0U);
  }
  for (unsigned n = 0; n < 3; ++n) {
    S s;
    s.write(msr::IA32_FIXED_CTR_CTRL, 0x3U << (4 * n));
    s.write(msr::IA32_FIXED_CTR0 + n, minus(1));
    s.run(1, 1);
    EXPECT_EQ(s.status(), bit(32 + n));
    EXPECT_EQ(s.env.pmis, 0U);
  }
}

// Rule O3.
TEST(Overflow, AsksForAnInterruptWhenTheCounterSaysSo) {
  for (unsigned i = 0; i < 4; ++i) {
    S s;
    s.start(i, with_interrupt(instructions), 1);
    s.run(1, 1);
    EXPECT_EQ(s.env.pmis, 1U) << i;
  }
  for (unsigned n = 0; n < 3; ++n) {
    S s;
    s.write(msr::IA32_FIXED_CTR_CTRL, 0xBU << (4 * n));
    s.write(msr::IA32_FIXED_CTR0 + n, minus(1));
    s.run(1, 1);
    EXPECT_EQ(s.env.pmis, 1U) << n;
  }
}

// Rule O4, P14: the bit is visible while armed, and nothing has been written.
TEST(Overflow, OfAPebsCounterArmsAndTouchesNoMemory) {
  S s;
  s.start_pebs(0, loads, 1);
  s.env.log.clear();
  s.run(1, 1);
  EXPECT_EQ(s.status(), 1U);
  EXPECT_TRUE(s.env.log.empty());
  EXPECT_TRUE(s.pmu.plan().any_armed());
}

// Rule O5.
TEST(Overflow, OfAFixedCounterOrPmc4ArmsNothing) {
  S s{PmuConfig{.smt = false}};
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'00FF);
  s.write(msr::IA32_PEBS_ENABLE, 0xF);
  s.write(msr::IA32_PERFEVTSEL0 + 4, loads.raw());
  s.write(msr::IA32_A_PMC0 + 4, minus(1));
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x3);
  s.write(msr::IA32_FIXED_CTR0, minus(1));
  s.run(1, 3);
  EXPECT_EQ(s.status(), bit(4) | bit(32));
  EXPECT_EQ(s.records(), 0U);
  EXPECT_FALSE(s.pmu.plan().any_armed());
}

// Rule O6: only GLOBAL_OVF_CTRL and the assist clear.
TEST(Overflow, StatusSurvivesEveryOtherWrite) {
  S s;
  s.start(0, instructions, 1);
  s.run(1, 1);
  s.write(msr::IA32_PMC0, 0);
  s.write(msr::IA32_A_PMC0, minus(5));
  s.write(msr::IA32_PERFEVTSEL0, 0);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0);
  s.write(msr::IA32_PEBS_ENABLE, 1);
  s.write(msr::IA32_PEBS_ENABLE, 0);
  EXPECT_EQ(s.status(), 1U);
}

// Rules O7, C6.
TEST(Overflow, CountsOnFromZeroAndAsksAgainAtTheNextOne) {
  S s;
  s.start(0, with_interrupt(instructions), 1);
  s.run(1, 3);
  EXPECT_EQ(s.pmc(0), 2U);
  EXPECT_EQ(s.env.pmis, 1U);
  s.write(msr::IA32_A_PMC0, minus(1));
  s.run(4, 4);
  EXPECT_EQ(s.status(), 1U);
  EXPECT_EQ(s.env.pmis, 2U) << "though the status bit was still set";
}

// Rule O9: only the transition arms.
TEST(Overflow, EnablingPebsAfterwardsArmsNothing) {
  S s;
  s.start(0, loads, 1);
  s.run(1, 1);
  s.write(msr::IA32_PEBS_ENABLE, 1);
  s.run(2, 5);
  EXPECT_EQ(s.records(), 0U);
  EXPECT_EQ(s.status(), 1U);
}

class OverflowTrace final : public TraceSink {
 public:
  void on(const TraceEvent& event) override {
    if (const auto* overflowed = std::get_if<Overflowed>(&event)) overflows.push_back(*overflowed);
  }
  std::vector<Overflowed> overflows;
};

TEST(Overflow, IsTracedWithItsCounterInServiceOrder) {
  OverflowTrace trace;
  S s{PmuConfig{.trace = &trace}};
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x3);
  s.write(msr::IA32_FIXED_CTR0, minus(1));
  s.start_pebs(2, loads, 1);
  s.start(1, instructions, 1);
  s.run(1, 1);
  ASSERT_EQ(trace.overflows.size(), 3U);
  EXPECT_EQ(trace.overflows[0].counter, CounterId::gp(1));
  EXPECT_EQ(trace.overflows[1].counter, CounterId::gp(2));
  EXPECT_TRUE(trace.overflows[1].armed_pebs);
  EXPECT_EQ(trace.overflows[2].counter, CounterId::fixed(0));
  EXPECT_FALSE(trace.overflows[2].armed_pebs);
}

}  // namespace
}  // namespace vpmu::test
