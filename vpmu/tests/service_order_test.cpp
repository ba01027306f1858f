#include <gtest/gtest.h>

#include "pebs_session.hpp"
#include "vpmu/order.hpp"

// Priority and number of interrupts: rules Q1 to Q9, V5.

namespace vpmu::test {
namespace {

using S = PebsSession;

CounterSet set_of(std::initializer_list<CounterId> counters) {
  CounterSet set;
  for (const CounterId c : counters) set.add(c);
  return set;
}
std::vector<Step> steps(const Simultaneous& due, AssistOrder order = AssistOrder::same_boundary) {
  const ServiceOrder result = service_order(due, order);
  return {result.active().begin(), result.active().end()};
}
constexpr CounterId pmc(unsigned i) { return CounterId::gp(i); }
constexpr StepKind pmi = StepKind::overflow_pmi;
constexpr StepKind assist = StepKind::pebs_assist;

TEST(ServiceOrder, NothingDueIsNoStep) { EXPECT_TRUE(steps({}).empty()); }

// Rule Q1.
TEST(ServiceOrder, GeneralPurposeBeforeFixedEachByIndex) {
  const std::vector<Step> expected{
      {pmi, pmc(0)}, {pmi, pmc(7)}, {pmi, CounterId::fixed(0)}, {pmi, CounterId::fixed(2)}};
  EXPECT_EQ(steps({.overflow_pmi = set_of({CounterId::fixed(2), pmc(7), CounterId::fixed(0), pmc(0)})}), expected);
}

// Rule Q2, the manual's example: PMC1's overflow interrupt comes before PMC2's assist.
TEST(ServiceOrder, OverflowPmiOfPmc1ComesBeforeTheAssistOfPmc2) {
  const std::vector<Step> expected{{pmi, pmc(1)}, {assist, pmc(2)}};
  EXPECT_EQ(steps({.overflow_pmi = set_of({pmc(1)}), .triggered = set_of({pmc(2)})}), expected);
}

// Rule Q9.
TEST(ServiceOrder, OneAssistServesAllTriggersAtThePlaceOfTheLowest) {
  const std::vector<Step> expected{{pmi, pmc(0)}, {assist, pmc(1)}, {pmi, pmc(2)}};
  EXPECT_EQ(steps({.overflow_pmi = set_of({pmc(0), pmc(2)}), .triggered = set_of({pmc(1), pmc(3)})}), expected);
}

// Rule Q8, option strict_defer: only an assist after an interrupt waits.
TEST(ServiceOrder, StrictDeferPutsOffOnlyTheAssistBehindAPmi) {
  const Simultaneous behind{.overflow_pmi = set_of({pmc(1)}), .triggered = set_of({pmc(2), pmc(3)})};
  EXPECT_EQ(steps(behind, AssistOrder::strict_defer), (std::vector<Step>{{pmi, pmc(1)}}));
  EXPECT_EQ(service_order(behind, AssistOrder::strict_defer).deferred, behind.triggered);

  const Simultaneous before{.overflow_pmi = set_of({pmc(1)}), .triggered = set_of({pmc(0), pmc(3)})};
  EXPECT_EQ(steps(before, AssistOrder::strict_defer), (std::vector<Step>{{assist, pmc(0)}, {pmi, pmc(1)}}));
  EXPECT_TRUE(service_order(before, AssistOrder::strict_defer).deferred.empty());
}

// Rule Q3.
TEST(Interrupts, SimultaneousOverflowsAreOnePmiAndSeveralStatusBits) {
  S s;
  for (unsigned i = 0; i < 4; ++i) s.start(i, with_interrupt(instructions), 1);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0xB);
  s.write(msr::IA32_FIXED_CTR0, minus(1));
  s.run(1, 1);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.status(), 0xFU | bit(32));
  EXPECT_EQ(s.statistics().pmi_requests, 1U);
}

// Rule V5: a threshold and another counter's overflow at one boundary join.
TEST(Interrupts, ThresholdAndOverflowOfAnotherCounterJoin) {
  for (const unsigned other : {0U, 2U}) {
    S s;
    s.set_threshold(S::buffer + S::size);
    s.start_pebs(1, loads, 3);
    s.start(other, with_interrupt(loads), 4);
    s.run(1, 4);
    EXPECT_EQ(s.env.pmis, 1U) << other;
    EXPECT_EQ(s.status(), ovf_buffer | bit(other));
  }
}

// Rule Q5: without a threshold the PEBS counter's overflow interrupt still waits for the assist.
TEST(Interrupts, OverflowPmiOfAPebsCounterComesWithItsRecord) {
  S s;
  s.start_pebs(0, with_interrupt(loads), 3);
  s.run(1, 3);
  EXPECT_EQ(s.env.pmis, 0U);
  s.run(4, 4);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.status(), 0U) << "nothing for the handler to find, rule Q6";
  s.run(5, 7);
  EXPECT_EQ(s.env.pmis, 1U) << "once per overflow";
}

// Rule Q5: also when the record was dropped.
TEST(Interrupts, OverflowPmiOfAPebsCounterComesEvenIfTheRecordIsDropped) {
  S s;
  s.set_ds({.absolute_maximum = S::buffer});
  s.start_pebs(0, with_interrupt(loads), 3);
  s.run(1, 4);
  EXPECT_EQ(s.statistics().records_dropped_full, 1U);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.status(), 1U);
}

// Rules P12, Q5: a counter served by another's assist gets its waiting interrupt with it.
TEST(Interrupts, WaitingPmiOfACounterServedByAnotherComesWithThatAssist) {
  S s;
  s.start_pebs(0, loads, 3);
  s.start_pebs(1, with_interrupt(loads), 4);
  s.run(1, 4);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.env.pmis, 1U);
  s.run(5, 7);
  EXPECT_EQ(s.env.pmis, 1U);
}

// Rule Q7.
TEST(Interrupts, UncoreOverflowShowsInTheStatusAndInterruptsWhenRouted) {
  S s;
  s.pmu.on_uncore_overflow(s.env);
  EXPECT_EQ(s.status(), bit(61));
  EXPECT_EQ(s.env.pmis, 0U);
  s.write(msr::IA32_DEBUGCTL, bit(13));
  s.pmu.on_uncore_overflow(s.env);
  EXPECT_EQ(s.env.pmis, 1U);
}

// Rule Q4.
TEST(Interrupts, ThresholdPmiFollowsTheRecordInMemory) {
  S s;
  s.set_threshold(S::buffer);
  s.start_pebs(0, loads, 1);
  s.run(1, 2);
  const auto& log = s.env.log;
  ASSERT_GE(log.size(), 2U);
  EXPECT_EQ(log.back().kind, Access::Kind::pmi);
  EXPECT_EQ(log[log.size() - 2].kind, Access::Kind::write);
}

}  // namespace
}  // namespace vpmu::test
