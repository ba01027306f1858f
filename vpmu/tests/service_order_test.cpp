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
std::vector<Step> steps(const Simultaneous& due) {
  const ServiceOrder result = service_order(due);
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
  EXPECT_EQ(s.status(), 1U | ovf_buffer);
}

// Rule Q5a: the event does not come again, and the interrupt comes without a record.
TEST(Interrupts, OverflowPmiOfAPebsCounterDoesNotWaitForEver) {
  S s;
  s.start_pebs(0, with_interrupt(loads), 3);
  s.run(1, 3);
  for (unsigned k = 4; k < 104; ++k) s.retire(s.plain(k));
  EXPECT_EQ(s.env.pmis, 0U) << "first the assist";
  for (unsigned k = 104; k < 1004; ++k) s.retire(s.plain(k));
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.status(), 1U);
  EXPECT_EQ(s.records(), 0U);
  s.run(1004, 1004);
  EXPECT_EQ(s.records(), 1U) << "still armed";
  EXPECT_EQ(s.env.pmis, 1U) << "once per overflow";
}

// Rule Q5a: the same when the counter cannot trigger any more.
TEST(Interrupts, OverflowPmiOfAPebsCounterComesWhenItStops) {
  using Stop = void (*)(S&);
  for (const Stop stop :
       {Stop{[](S& s) { s.write(msr::IA32_PERF_GLOBAL_CTRL, 0); }},
        Stop{[](S& s) { s.write(msr::IA32_PERFEVTSEL0, 0); }}, Stop{[](S& s) { s.write(msr::IA32_PMC0, 0); }},
        Stop{[](S& s) { s.write(msr::IA32_PEBS_ENABLE, 0); }}}) {
    S s;
    s.start_pebs(0, with_interrupt(loads), 3);
    s.run(1, 3);
    s.pmu.settle({}, s.env);
    EXPECT_EQ(s.env.pmis, 0U);
    stop(s);
    s.pmu.settle({}, s.env);
    EXPECT_EQ(s.env.pmis, 1U);
    s.pmu.settle({}, s.env);
    EXPECT_EQ(s.env.pmis, 1U);
  }
}

// Rule Q5a: a processor that halts retires nothing, and only an interrupt wakes it.
TEST(Interrupts, OverflowPmiOfAPebsCounterComesWhenTheProcessorHalts) {
  S s;
  s.pmu.halt(s.env);
  s.start_pebs(0, with_interrupt(loads), 3);
  s.run(1, 2);
  s.pmu.halt(s.env);
  EXPECT_EQ(s.env.pmis, 0U) << "nothing waits";
  s.run(3, 3);
  EXPECT_TRUE(s.pmu.pmi_waits());
  s.pmu.halt(s.env);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_FALSE(s.pmu.pmi_waits());
  EXPECT_EQ(s.status(), 1U);
  s.pmu.halt(s.env);
  s.run(4, 4);
  EXPECT_EQ(s.records(), 1U) << "still armed";
  EXPECT_EQ(s.env.pmis, 1U) << "once per overflow";
}

TEST(Interrupts, WaitOfAPmiIsSavedAndRestored) {
  S a, b;
  a.start_pebs(0, with_interrupt(loads), 3);
  a.run(1, 3);
  for (unsigned k = 4; k < 404; ++k) a.retire(a.plain(k));
  ASSERT_EQ(b.pmu.restore(a.pmu.snapshot()), RestoreStatus::ok);
  for (unsigned k = 404; k < 604; ++k) {
    a.retire(a.plain(k));
    b.retire(b.plain(k));
    ASSERT_EQ(a.env.pmis, b.env.pmis) << k;
  }
  EXPECT_EQ(b.env.pmis, 1U);
}

TEST(Interrupts, InitForgetsAPmiThatWaits) {
  S s;
  s.start_pebs(0, with_interrupt(loads), 3);
  s.run(1, 3);
  s.pmu.init();
  s.pmu.settle({}, s.env);
  EXPECT_EQ(s.env.pmis, 0U);
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
