#include "sources/clock_source.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "fakes/fake_guest.hpp"
#include "fakes/fake_timer.hpp"

namespace vmm::test {
namespace {

using namespace std::chrono_literals;
using vpmu::CounterId;
using vpmu::Counts;
using vpmu::PlanEntry;

constexpr CounterId pmc0 = CounterId::gp(0), pmc1 = CounterId::gp(1);
constexpr std::uint64_t far_away = 1ULL << 48;

/// A counter of all events of that kind, at both levels, far from its overflow.
PlanEntry counter(CounterId id, Counts counts) {
  return {.counter = id, .counts = counts, .usr = true, .os = true, .distance = far_away};
}
PlanEntry sampling(CounterId id, Counts counts, std::uint64_t period) {
  PlanEntry e = counter(id, counts);
  e.distance = period;
  e.wants_overflow = true;
  return e;
}

class ClockSourceOn : public testing::Test {
 protected:
  ClockSourceOn() { backend_.time = &time_; }
  void program(std::initializer_list<PlanEntry> entries) {
    vpmu::CountPlan plan;
    for (const PlanEntry& e : entries) plan.entries[plan.size++] = e;
    ASSERT_TRUE(source_.program(plan));
  }
  /// The guest runs for `time`, then exits for a reason that is not the source's.
  vpmu::CountDeltas run_for(nanoseconds time) { return run_to(time, Shutdown{}); }
  /// The guest runs until the timer kicks, or exits after `at_most` if that is earlier.
  vpmu::CountDeltas run_to_kick(nanoseconds at_most = 2h) {
    backend_.script.emplace_back([this, at_most](FakeBackend&) -> Exit {
      EXPECT_TRUE(time_.due) << "the timer must be armed";
      time_.now = std::min(time_.now + at_most, std::max(time_.now, time_.due.value_or(nanoseconds{0})));
      if (time_.take_kick()) return Interrupted{};
      return Shutdown{};
    });
    return finish(std::nullopt);
  }
  /// A kick that the timer did not make.
  vpmu::CountDeltas run_to_foreign_kick(nanoseconds time) { return run_to(time, Interrupted{}); }
  vpmu::CountDeltas run_to(nanoseconds time, Exit exit) {
    backend_.script.emplace_back([this, time, exit](FakeBackend&) {
      time_.pass(time);
      return exit;
    });
    return finish(std::nullopt);
  }
  vpmu::CountDeltas finish(std::optional<nanoseconds> at_most) {
    const auto end = source_.run(backend_, at_most);
    EXPECT_TRUE(end && end->exit);
    const auto deltas = source_.sync(backend_);
    EXPECT_TRUE(deltas);
    return deltas.value_or(vpmu::CountDeltas{});
  }

  FakeGuest guest_;
  FakeBackend& backend_{guest_.backend};
  ScriptedTime time_;
  ClockSource source_{std::make_unique<FakeTimer>(time_), guest_.breakpoints, guest_.view,
                      vpmu::describe(vpmu::Generation::haswell), 1};
};

TEST_F(ClockSourceOn, CyclesAreTimeAtTheRateOfTheTsc) {
  backend_.can.tsc_khz = 2'500'000;
  program({counter(pmc0, Counts::cycles), counter(pmc1, Counts::ref_cycles)});
  const auto deltas = run_for(2us);
  EXPECT_EQ(deltas[pmc0], 5000U);
  EXPECT_EQ(deltas[pmc1], 5000U);
}

TEST_F(ClockSourceOn, AnInstructionIsACycle) {
  program({counter(pmc0, Counts::instructions)});
  EXPECT_EQ(run_for(1ms)[pmc0], 1'000'000U);
}

TEST_F(ClockSourceOn, OtherEventsReadNothing) {
  program({counter(pmc0, Counts::loads), counter(pmc1, Counts::frontend)});
  const auto deltas = run_for(1s);
  EXPECT_EQ(deltas[pmc0], 0U);
  EXPECT_EQ(deltas[pmc1], 0U);
}

TEST_F(ClockSourceOn, OtherEventsNeedNoTimer) {
  program({sampling(pmc0, Counts::loads, 1000)});
  run_for(1s);
  EXPECT_TRUE(time_.armed.empty());
}

TEST_F(ClockSourceOn, FormsOfEventsCountTheCyclesInWhichTheirConditionHolds) {
  PlanEntry at_least_two = counter(pmc0, Counts::instructions);
  at_least_two.spec.cmask = 2;
  at_least_two.per_cycle = true;
  PlanEntry never_two = counter(pmc1, Counts::instructions);
  never_two.spec = {.cmask = 2, .inv = true};
  never_two.per_cycle = true;
  program({at_least_two, never_two});
  const auto deltas = run_for(1us);
  EXPECT_EQ(deltas[pmc0], 0U);
  EXPECT_EQ(deltas[pmc1], 1000U);
}

// Many short runs must count as much as one long run.
TEST_F(ClockSourceOn, PartsOfAnEventAreKept) {
  backend_.can.tsc_khz = 333'333;
  program({counter(pmc0, Counts::cycles), counter(pmc1, Counts::bus_cycles)});
  std::uint64_t cycles = 0;
  std::uint64_t bus_cycles = 0;
  for (int n = 0; n < 30'000; ++n) {
    const auto deltas = run_for(1ns);
    cycles += deltas[pmc0];
    bus_cycles += deltas[pmc1];
  }
  EXPECT_EQ(cycles, 9999U);
  EXPECT_EQ(bus_cycles, 2999U) << "of a clock of 100 MHz";
}

// The back end decides what is guest time: time outside its runs does not count.
TEST_F(ClockSourceOn, TimeThatTheGuestDidNotSeeDoesNotCount) {
  program({counter(pmc0, Counts::cycles)});
  run_for(1us);
  time_.pass(100ns);
  EXPECT_EQ(run_for(1us)[pmc0], 1000U);
}

TEST_F(ClockSourceOn, TimeWhileNothingIsCountedDoesNotCount) {
  program({counter(pmc0, Counts::cycles)});
  run_for(1us);
  program({});
  time_.pass(1s);
  program({counter(pmc0, Counts::cycles)});
  EXPECT_EQ(run_for(1us)[pmc0], 1000U);
}

TEST_F(ClockSourceOn, SyncHandsOutEachEventOnce) {
  program({counter(pmc0, Counts::cycles)});
  EXPECT_EQ(run_for(1us)[pmc0], 1000U);
  EXPECT_EQ((*source_.sync(backend_))[pmc0], 0U);
}

TEST_F(ClockSourceOn, EmptyPlanReadsNoClockAndArmsNothing) {
  program({});
  run_for(1us);
  EXPECT_EQ(time_.reads, 0U);
  EXPECT_TRUE(time_.armed.empty());
}

TEST_F(ClockSourceOn, EmptyPlanComesBackInTimeWhenAskedTo) {
  program({});
  backend_.script.emplace_back([this](FakeBackend&) {
    time_.pass(200us);
    return Interrupted{};
  });
  finish(200us);
  EXPECT_EQ(time_.armed, std::vector<nanoseconds>{200us});
}

TEST_F(ClockSourceOn, CountingWithoutOverflowNeedsNoTimer) {
  program({counter(pmc0, Counts::cycles)});
  run_for(1s);
  EXPECT_TRUE(time_.armed.empty());
}

// The kick must not come before the overflow: another kick would be needed.
TEST_F(ClockSourceOn, KickComesWhenTheCounterIsDue) {
  backend_.can.tsc_khz = 2'000'000;
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  EXPECT_GE(run_to_kick()[pmc0], 1'000'000U);
  ASSERT_EQ(time_.armed.size(), 1U);
  EXPECT_GE(time_.armed[0], 500us);
  EXPECT_LE(time_.armed[0], 500us + 1ns);
}

TEST_F(ClockSourceOn, RateOfTheEventDecidesWhenItIsDue) {
  program({sampling(pmc0, Counts::bus_cycles, 100'000)});
  EXPECT_GE(run_to_kick()[pmc0], 100'000U);
  EXPECT_GE(time_.armed[0], 1ms) << "of a clock of 100 MHz";
  EXPECT_LE(time_.armed[0], 1ms + 10ns);
}

TEST_F(ClockSourceOn, NearestOfSeveralDecides) {
  program({sampling(pmc0, Counts::cycles, 900'000), sampling(pmc1, Counts::cycles, 300'000)});
  run_to_kick();
  EXPECT_LE(time_.armed[0], 300us + 1ns);
}

// Each gets a record of its own.
TEST_F(ClockSourceOn, PreciseCountersDueAtOneKickOverflowOneAfterTheOther) {
  PlanEntry first = sampling(pmc0, Counts::cycles, 1000), second = sampling(pmc1, Counts::cycles, 1500);
  first.precise = second.precise = true;
  program({first, second});
  auto deltas = run_for(5us);
  EXPECT_EQ(deltas[pmc0], 1000U);
  EXPECT_EQ(deltas[pmc1], 1000U);
  first.distance = far_away;  // its record has been written
  second.distance = 500;
  program({first, second});
  deltas = run_for(1us);
  EXPECT_EQ(deltas[pmc1], 500U);
  second.distance = far_away;
  program({first, second});
  EXPECT_EQ(run_for(1us)[pmc1], 5500U) << "nothing is lost";
}

TEST_F(ClockSourceOn, ShorterThanTheTimerCanIsTakenAsItsShortest) {
  program({sampling(pmc0, Counts::cycles, 1)});
  run_to_kick();
  EXPECT_EQ(time_.armed[0], CpuTimer::min());
}

TEST_F(ClockSourceOn, AtMostEndsARunBeforeTheCounterIsDue) {
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  backend_.script.push_back(FakeBackend::ends_with(Interrupted{}));
  finish(100us);
  EXPECT_EQ(time_.armed, std::vector<nanoseconds>{100us});
}

TEST_F(ClockSourceOn, ArmedTimerIsLeftAloneByExitsOnTheWay) {
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  for (int n = 0; n < 5; ++n) run_for(100us);
  EXPECT_EQ(time_.armed.size(), 1U);
  EXPECT_GE(run_to_kick()[pmc0], 500'000U);
}

// A kick that each exit put off would never come.
TEST_F(ClockSourceOn, AKickThatIsOnItsWayIsLeftAlone) {
  PlanEntry user = counter(pmc0, Counts::cycles);
  user.os = false;
  program({user});
  run_for(1ms + 10us);
  run_for(10us);
  EXPECT_EQ(time_.armed.size(), 1U);
  EXPECT_TRUE(time_.take_kick());
  run_for(100us);
  run_for(10us);
  EXPECT_EQ(time_.armed.size(), 2U) << "it came to nobody";
}

// A kick may come early: from somebody else, or from a timer that was armed for another overflow.
TEST_F(ClockSourceOn, EarlyKickArmsForTheRest) {
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  std::uint64_t counted = run_to_foreign_kick(300us)[pmc0];
  counted += run_to_kick()[pmc0];
  EXPECT_GE(counted, 1'000'000U);
  ASSERT_EQ(time_.armed.size(), 2U);
  EXPECT_LE(time_.armed[1], 700us + 1ns);
}

// The timer measures the thread's time, the counter the guest's: time outside the guest makes the kick early, never
// late.
TEST_F(ClockSourceOn, TimeSpentOnExitsDoesNotMakeTheKickLate) {
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  std::uint64_t counted = 0;
  for (int n = 0; counted < 1'000'000; ++n) {
    ASSERT_LT(n, 50);
    time_.pass(50us);
    counted += run_to_kick(n % 2 == 0 ? 30us : 1s)[pmc0];
  }
  EXPECT_LE(counted, 1'000'000U + 10'000U) << "not later than the timer's shortest time";
}

TEST_F(ClockSourceOn, NearerOverflowMovesTheTimerForward) {
  program({sampling(pmc0, Counts::cycles, 1'000'000)});
  run_for(1us);
  program({sampling(pmc0, Counts::cycles, 50'000)});
  run_for(1us);
  ASSERT_EQ(time_.armed.size(), 2U);
  EXPECT_LE(time_.armed[1], 50us + 1ns);
}

TEST_F(ClockSourceOn, HugeDistancesFitTheTimer) {
  backend_.can.tsc_khz = 1;
  program({sampling(pmc0, Counts::bus_cycles, far_away)});
  run_for(1us);
  ASSERT_EQ(time_.armed.size(), 1U);
  EXPECT_EQ(time_.armed[0], 1h);
}

// Rule C1, as far as a clock can tell: time is attributed to the level that the last kick found.
TEST_F(ClockSourceOn, OneLevelCountersGetTheTimeOfTheirLevel) {
  PlanEntry user = counter(pmc0, Counts::cycles);
  user.os = false;
  PlanEntry kernel = counter(pmc1, Counts::cycles);
  kernel.usr = false;
  program({user, kernel});
  guest_.enter_ring(3);
  auto deltas = run_to_kick();
  EXPECT_GT(deltas[pmc0], 0U);
  EXPECT_EQ(deltas[pmc1], 0U);
  guest_.enter_ring(0);
  deltas = run_to_kick();
  EXPECT_EQ(deltas[pmc0], 0U);
  EXPECT_GT(deltas[pmc1], 0U);
}

TEST_F(ClockSourceOn, OneLevelCountersAreSampledEveryMillisecond) {
  PlanEntry user = counter(pmc0, Counts::cycles);
  user.os = false;
  program({user});
  run_for(1us);
  EXPECT_EQ(time_.armed, std::vector<nanoseconds>{1ms});
}

// Exits happen mostly in the kernel: they are no fair sample of the level.
TEST_F(ClockSourceOn, OnlyKicksSampleTheLevel) {
  PlanEntry user = counter(pmc0, Counts::cycles);
  user.os = false;
  program({user});
  guest_.enter_ring(3);
  run_to_kick();
  guest_.enter_ring(0);
  EXPECT_GT(run_for(10us)[pmc0], 0U);
}

TEST_F(ClockSourceOn, FailureOfTheTimerEndsTheRun) {
  class BrokenTimer final : public CpuTimer {
   public:
    Result<void> arm(nanoseconds) override { return host_error("no timer"); }
    Result<void> arm_wall(nanoseconds) override { return host_error("no timer"); }
    Result<void> disarm() override { return {}; }
    [[nodiscard]] nanoseconds now() const override { return {}; }
    [[nodiscard]] std::string_view name() const override { return "broken"; }
  };
  ClockSource source{std::make_unique<BrokenTimer>(), guest_.breakpoints, guest_.view,
                     vpmu::describe(vpmu::Generation::haswell), 1};
  vpmu::CountPlan plan{.size = 1};
  plan.entries[0] = sampling(pmc0, Counts::cycles, 1000);
  ASSERT_TRUE(source.program(plan));
  EXPECT_FALSE(source.run(backend_, std::nullopt));
  EXPECT_EQ(backend_.count("run"), 0U);
}

// A walk's time is the host's: its two stops of the vCPU must not count as thousands of cycles before the record is
// written.
TEST_F(ClockSourceOn, WalksDoNotCount) {
  constexpr std::uint64_t code = 0x40'0000;
  guest_.map(code, vpmu::page_size);
  guest_.store_code(code, {0xEB, 0xFE});  // jmp to itself: a block of one
  backend_.registers.rip = code;
  vpmu::CountPlan plan{.size = 1};
  plan.entries[0] = sampling(pmc0, Counts::instructions, 1000);
  plan.entries[0].armed = true;
  ASSERT_TRUE(source_.program(plan));
  backend_.script.emplace_back([this](FakeBackend& p) {
    time_.pass(1ms);
    return Debug{1, p.registers.rip, 0xFFFF'0FF0 | (1 << 14), 0x400};
  });
  const auto end = source_.walk(backend_);
  ASSERT_TRUE(end);
  ASSERT_TRUE(end->retired);
  EXPECT_EQ(end->retired->what.ip, vpmu::GuestLinear{code});
  EXPECT_EQ((*source_.sync(backend_))[pmc0], 0U);
}

// Rule C1: only the levels of armed counters, and of those that the source counts.
TEST_F(ClockSourceOn, WalksOnlyAtTheLevelsOfArmedCounters) {
  vpmu::CountPlan plan{.size = 3};
  plan.entries[0] = sampling(pmc0, Counts::instructions, 1000);
  plan.entries[1] = sampling(pmc1, Counts::instructions, 1000);
  plan.entries[1].armed = true;
  plan.entries[1].os = false;
  plan.entries[2] = sampling(CounterId::gp(2), Counts::loads, 1000);
  plan.entries[2].armed = true;
  ASSERT_TRUE(source_.program(plan));
  const auto end = source_.walk(backend_);
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->retired);
  EXPECT_EQ(backend_.count("run"), 0U);
  std::uint64_t wrong_level = 0;
  source_.visit_statistics([&](std::string_view name, std::uint64_t value) {
    if (name == "pmu.walk.wrong_level") wrong_level = value;
  });
  EXPECT_EQ(wrong_level, 1U);
}

TEST_F(ClockSourceOn, StatisticsHaveNames) {
  std::map<std::string, std::uint64_t, std::less<>> seen;
  source_.visit_statistics([&](std::string_view name, std::uint64_t value) { seen.emplace(name, value); });
  EXPECT_TRUE(seen.contains("pmu.walk.records"));
  EXPECT_TRUE(seen.contains("pmu.walk.abandoned"));
}

}  // namespace
}  // namespace vmm::test
