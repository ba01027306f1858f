#include "vcpu/guest_clock.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace vmm::test {
namespace {

/// A host at 1 GHz: one tick is one nanosecond.
class FakeClockHost final : public ClockHost {
 public:
  std::uint64_t now{1'000'000};
  std::uint64_t slept{};
  std::optional<std::uint64_t> offset{1ULL << 40};
  std::uint64_t shift_takes{};
  unsigned rearmed{};

  [[nodiscard]] std::uint64_t ticks() const override { return now; }
  [[nodiscard]] std::chrono::nanoseconds halted() const override { return std::chrono::nanoseconds{slept}; }
  Result<std::uint64_t> tsc_offset() override {
    if (!offset) return host_error("no TSC offset here");
    return *offset;
  }
  Result<void> set_tsc_offset(std::uint64_t to) override {
    offset = to;
    now += shift_takes;
    return {};
  }
  Result<void> rearm_deadline() override {
    ++rearmed;
    return {};
  }
};

class GuestClockOn : public testing::Test {
 protected:
  static constexpr std::uint64_t khz = 1'000'000;
  GuestClockOn() { clock_.watch(true); }
  /// The guest runs for `ticks`, then exits.
  void run(GuestClock& clock, std::uint64_t ticks, ExitCause cause) {
    ASSERT_TRUE(clock.enter(host_));
    host_.now += ticks;
    clock.leave(host_, cause);
  }
  /// Makes enough steps for the clock to learn how long a world switch takes.
  void learn(std::uint64_t ticks) {
    for (unsigned n = 0; n < LeastTime::enough; ++n) run(clock_, ticks, ExitCause::step);
  }
  /// The TSC that the guest would read now.
  [[nodiscard]] std::uint64_t guest_tsc() const { return host_.now + host_.offset.value_or(0); }

  FakeClockHost host_;
  GuestClock clock_{PmuTime::hidden, khz};
};

TEST_F(GuestClockOn, CountsWhatTheGuestRan) {
  run(clock_, 500, ExitCause::pmu);
  host_.now += 10'000;
  run(clock_, 300, ExitCause::pmu);
  EXPECT_EQ(clock_.unhalted_ticks(), 800U);
}

TEST_F(GuestClockOn, TscStandsStillOverAnExitOfThePmu) {
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  host_.now += 10'000;
  ASSERT_TRUE(clock_.enter(host_));
  EXPECT_EQ(guest_tsc(), left);
  EXPECT_EQ(clock_.statistics().hidden_ticks, 10'000U);
  EXPECT_EQ(host_.rearmed, 1U) << "a timer that waits for the TSC must wait longer";
}

TEST_F(GuestClockOn, WhatOthersTakeIsNeitherHiddenNorCounted) {
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  host_.now += 1'000'000;
  host_.offset = *host_.offset - 1'000'000;  // a VMM gives the guest the TSC that it left with
  clock_.forget_exit();
  run(clock_, 300, ExitCause::pmu);
  EXPECT_EQ(guest_tsc(), left + 300);
  EXPECT_EQ(clock_.unhalted_ticks(), 800U);
  EXPECT_EQ(clock_.statistics().hidden_ticks, 0U);
}

TEST_F(GuestClockOn, ReadInAnExitTheTscStandsWhereTheGuestLeft) {
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  host_.now += 10'000;
  EXPECT_EQ(clock_.stands_at(host_).value_or(0), left);
}

// Instructions that the engine runs for the guest take guest time; the host's time beyond that is hidden.
TEST_F(GuestClockOn, InstructionsDoneOutsideAreTimeForTheGuest) {
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  host_.now += 10'000;
  clock_.pass(300);
  EXPECT_EQ(*clock_.stands_at(host_), left + 300);
  ASSERT_TRUE(clock_.enter(host_));
  EXPECT_EQ(guest_tsc(), left + 300);
  EXPECT_EQ(clock_.statistics().hidden_ticks, 9'700U);
  clock_.leave(host_, ExitCause::pmu);
  host_.now += 1'000;
  ASSERT_TRUE(clock_.enter(host_));
  EXPECT_EQ(guest_tsc(), left + 300) << "each exit by itself";
}

// To step an instruction that does not read the time, the TSC need not be shifted first. But timers must not wait for
// ever.
TEST_F(GuestClockOn, MayStandOnForAMillisecondAfterAnExitOfThePmu) {
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  EXPECT_TRUE(clock_.may_stand_on(host_));
  host_.now += khz - 1;
  EXPECT_TRUE(clock_.may_stand_on(host_));
  clock_.pass(1);
  host_.now += 1;
  EXPECT_FALSE(clock_.may_stand_on(host_));
  ASSERT_TRUE(clock_.enter(host_));
  EXPECT_EQ(guest_tsc(), left + 1) << "what was not shifted then is shifted now";
}

TEST_F(GuestClockOn, MayNotStandOnWhereItRuns) {
  EXPECT_FALSE(clock_.may_stand_on(host_)) << "before it ever ran";
  run(clock_, 500, ExitCause::device);
  EXPECT_FALSE(clock_.may_stand_on(host_));
  clock_.watch(false);
  run(clock_, 500, ExitCause::pmu);
  EXPECT_FALSE(clock_.may_stand_on(host_));
  GuestClock real{PmuTime::real, khz};
  real.watch(true);
  run(real, 500, ExitCause::pmu);
  EXPECT_FALSE(real.may_stand_on(host_));
}

// On hardware an access to a device takes time, too.
TEST_F(GuestClockOn, ExitOfADeviceIsTimeForTheGuest) {
  run(clock_, 500, ExitCause::device);
  host_.now += 10'000;
  run(clock_, 300, ExitCause::device);
  EXPECT_EQ(clock_.unhalted_ticks(), 10'800U);
  EXPECT_EQ(clock_.statistics().shifts, 0U);
}

// The time that the shift of the TSC itself takes is hidden by the next shift.
TEST_F(GuestClockOn, GuestClockNeverRunsBackwards) {
  constexpr std::uint64_t switch_takes = 10;
  const std::uint64_t first = guest_tsc();
  std::uint64_t last = 0;
  std::uint64_t in_guest = 0;
  std::uint64_t counted = 0;
  constexpr unsigned rounds = 120;
  for (unsigned n = 0; n < rounds; ++n) {
    host_.shift_takes = n == 0 ? 100'000 : 60 + n % 20;  // the first takes much longer than the others
    const std::uint64_t ran = n * 37 % 101 + 1;
    ASSERT_TRUE(clock_.enter(host_));
    host_.now += n == 0 ? 200'000 : switch_takes;
    EXPECT_GE(guest_tsc(), last);
    EXPECT_GE(clock_.unhalted_ticks(), counted);
    counted = clock_.unhalted_ticks();
    host_.now += ran;
    in_guest += ran;
    last = guest_tsc();
    host_.now += switch_takes;
    clock_.leave(host_, ExitCause::step);
    host_.now += 1000;
  }
  EXPECT_LT(last - first, in_guest + 300'000 + rounds * (2 * switch_takes + 80)) << "nor does it run away";
}

// Unhalted ticks advance exactly as the guest's TSC does: otherwise a counter would stand still in a loop of exits
// while time passes.
TEST_F(GuestClockOn, CountsWhatTheTscShows) {
  learn(100);
  const std::uint64_t tsc = guest_tsc();
  const std::uint64_t counted = clock_.unhalted_ticks();
  for (const std::uint64_t takes : {70U, 90U, 75U, 300U}) {
    host_.shift_takes = takes;
    host_.now += 1000;
    run(clock_, 200, ExitCause::step);
  }
  const auto stands = clock_.stands_at(host_);
  ASSERT_TRUE(stands);
  EXPECT_NEAR(static_cast<double>(*stands - tsc), static_cast<double>(clock_.unhalted_ticks() - counted), 100);
}

// From steps of 100 ticks the clock learns that world switches take about 75. A step of 1000 then counts as 925.
TEST_F(GuestClockOn, WorldSwitchesAreNotTheGuests) {
  learn(100);
  const std::uint64_t before = clock_.unhalted_ticks();
  run(clock_, 1000, ExitCause::step);
  EXPECT_EQ(clock_.unhalted_ticks() - before, 925U);
  const std::uint64_t tsc_before = guest_tsc();
  ASSERT_TRUE(clock_.enter(host_));
  EXPECT_EQ(guest_tsc(), tsc_before - 75);
}

TEST_F(GuestClockOn, ARunInWhichTheGuestCannotLookAtTheClockIsOneTick) {
  learn(100);
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t left = *clock_.stands_at(host_), counted = clock_.unhalted_ticks();
  for (const std::uint64_t takes : {70U, 2'000U, 75U}) {
    host_.now += 10'000;
    host_.shift_takes = takes;
    run(clock_, 7'000, ExitCause::once);
  }
  EXPECT_EQ(*clock_.stands_at(host_), left + 3) << "not even what the shifts took longer than they must";
  EXPECT_EQ(clock_.unhalted_ticks(), counted + 3);
}

/// How many timer interrupts a guest takes that is to run a number of instructions, one tick each, and is sampled: for
/// each sample the host emulates the guest's handler, and delivers an event and steps an instruction by KVM. The
/// handler of the timer is sampled itself. `slow`: what anything takes on this host.
unsigned timer_interrupts(std::uint64_t slow) {
  constexpr std::uint64_t program = 10'000'000, period = 3'000, handler = 4'000, tick = 4'000'000,
                          timer_handler = 40'000;
  constexpr unsigned too_many = 1'000;
  FakeClockHost host;
  host.shift_takes = 3 * slow;
  GuestClock clock{PmuTime::hidden, 1'000'000};
  clock.watch(true);
  const auto runs_once = [&] {
    EXPECT_TRUE(clock.enter(host));
    host.now += 10 * slow;
    clock.leave(host, ExitCause::once);
  };
  const auto emulates = [&](std::uint64_t instructions) {
    host.now += instructions * slow / 100;
    clock.pass(instructions);
  };
  const auto runs_sampled = [&](std::uint64_t instructions) {
    for (std::uint64_t done = 0; done < instructions; done += period) {
      emulates(period);
      runs_once();
      emulates(handler);
      runs_once();
    }
  };
  runs_once();
  std::uint64_t due = *clock.stands_at(host) + tick;
  unsigned interrupts = 0;
  for (std::uint64_t done = 0; done < program && interrupts < too_many; done += period) {
    runs_sampled(period);
    if (*clock.stands_at(host) < due) continue;
    ++interrupts;
    due = *clock.stands_at(host) + tick;
    runs_sampled(timer_handler);
  }
  return interrupts;
}

// On a host where each sample costs more than the time between two timer interrupts, a guest that saw it would run
// nothing but their handlers.
TEST(GuestClockOnHosts, OfAnySpeedTheGuestGetsOnEquallyWell) {
  const unsigned expected = timer_interrupts(200);
  EXPECT_GE(expected, 5U);
  EXPECT_LE(expected, 7U);
  for (const std::uint64_t slow : {1'000U, 10'000U, 1'000'000U, 100'000'000U})
    EXPECT_EQ(timer_interrupts(slow), expected);
}

// Between two other exits the guest may have run all the time: such runs do not tell what switches take.
TEST_F(GuestClockOn, OnlyStepsTellWhatSwitchesTake) {
  for (const std::uint64_t ran : {1'000'000U, 50U, 700'000U}) run(clock_, ran, ExitCause::pmu);
  EXPECT_EQ(clock_.unhalted_ticks(), 1'700'050U);
  learn(100);
  const std::uint64_t before = clock_.unhalted_ticks();
  run(clock_, 1000, ExitCause::pmu);
  EXPECT_EQ(clock_.unhalted_ticks() - before, 925U);
}

TEST_F(GuestClockOn, HaltedTimeIsNotUnhalted) {
  ASSERT_TRUE(clock_.enter(host_));
  host_.now += 1000;
  host_.slept += 900;
  clock_.leave(host_, ExitCause::device);
  EXPECT_EQ(clock_.unhalted_ticks(), 100U);
}

TEST_F(GuestClockOn, UnwatchedItTouchesNothing) {
  GuestClock idle{PmuTime::hidden, khz};
  run(idle, 500, ExitCause::pmu);
  host_.now += 1000;
  run(idle, 500, ExitCause::pmu);
  EXPECT_EQ(idle.unhalted_ticks(), 0U);
  EXPECT_EQ(idle.statistics().shifts, 0U);
}

TEST_F(GuestClockOn, IsIdleWhileItIsNotWatched) {
  EXPECT_FALSE(clock_.is_idle());
  clock_.watch(false);
  EXPECT_TRUE(clock_.is_idle());
}

TEST_F(GuestClockOn, ExitThatEndsTheWatchIsNotHidden) {
  run(clock_, 500, ExitCause::pmu);
  clock_.watch(false);
  host_.now += 1000;
  run(clock_, 500, ExitCause::pmu);
  EXPECT_EQ(clock_.statistics().shifts, 0U);
  EXPECT_EQ(clock_.unhalted_ticks(), 500U);
}

TEST_F(GuestClockOn, ExitThatBeginsTheWatchIsHidden) {
  GuestClock clock{PmuTime::hidden, khz};
  run(clock, 500, ExitCause::pmu);
  const std::uint64_t left = guest_tsc();
  clock.watch(true);
  host_.now += 1000;
  ASSERT_TRUE(clock.enter(host_));
  EXPECT_EQ(guest_tsc(), left);
  EXPECT_EQ(clock.unhalted_ticks(), 0U) << "but nothing from before the watch counts";
}

TEST_F(GuestClockOn, RealTimeCountsExitsToo) {
  GuestClock real{PmuTime::real, khz};
  real.watch(true);
  run(real, 500, ExitCause::pmu);
  host_.now += 100;
  run(real, 500, ExitCause::pmu);
  EXPECT_EQ(real.unhalted_ticks(), 1100U);
  EXPECT_EQ(real.statistics().shifts, 0U);
}

// Otherwise a short sampling period could end before the guest had run at all.
TEST_F(GuestClockOn, RealTimeOfAnExitCountsAtMostAsMuchAsTheGuestRan) {
  GuestClock real{PmuTime::real, khz};
  real.watch(true);
  run(real, 500, ExitCause::pmu);
  host_.now += 1'000'000;
  run(real, 500, ExitCause::pmu);
  EXPECT_EQ(real.unhalted_ticks(), 1500U);
}

TEST_F(GuestClockOn, HostThatCannotShiftKeepsRealTime) {
  host_.offset.reset();
  run(clock_, 500, ExitCause::pmu);
  host_.now += 100;
  run(clock_, 500, ExitCause::pmu);
  host_.now += 100;
  run(clock_, 500, ExitCause::pmu);
  EXPECT_FALSE(clock_.hides());
  EXPECT_EQ(clock_.unhalted_ticks(), 1600U) << "the first exit found out, the second is counted";
}

TEST(TimeBesideOthers, IsHiddenFromTheOnlyVcpuAndFromNoneOfSeveral) {
  EXPECT_EQ(time_beside_others(PmuTime::hidden, 1), PmuTime::hidden);
  EXPECT_EQ(time_beside_others(PmuTime::hidden, 2), PmuTime::real);
  EXPECT_EQ(time_beside_others(PmuTime::hidden, 64), PmuTime::real);
  EXPECT_EQ(time_beside_others(PmuTime::real, 1), PmuTime::real);
}

// Two vCPUs compare their TSCs. One exits to its PMU between any two comparisons, the other never does.
TEST_F(GuestClockOn, ClocksOfTwoAreNeverSeenOutOfOrder) {
  constexpr PmuTime time = time_beside_others(PmuTime::hidden, 2);
  FakeClockHost other_host;
  GuestClock sampled{time, khz}, other{time, khz};
  sampled.watch(true);
  std::uint64_t latest = 0;
  for (unsigned n = 0; n < 1000; ++n) {
    run(sampled, 50 + n % 7, n % 3 == 0 ? ExitCause::step : ExitCause::pmu);
    host_.now += 1000 * (n % 5);
    ASSERT_TRUE(sampled.enter(host_));
    ASSERT_GE(guest_tsc(), latest);
    latest = guest_tsc();
    other_host.now = ++host_.now;
    ASSERT_TRUE(other.enter(other_host));
    ASSERT_GT(other_host.now + *other_host.offset, latest);
    latest = other_host.now + *other_host.offset;
    sampled.leave(host_, ExitCause::pmu);
  }
  EXPECT_GT(sampled.unhalted_ticks(), 1000U);
  EXPECT_EQ(sampled.statistics().shifts, 0U);
}

TEST_F(GuestClockOn, NothingMoreIsHiddenOnceThereIsAnother) {
  run(clock_, 500, ExitCause::pmu);
  host_.now += 1000;
  run(clock_, 500, ExitCause::pmu);
  const std::uint64_t hidden = clock_.statistics().hidden_ticks;
  const std::uint64_t offset = *host_.offset;
  ASSERT_GE(hidden, 1000U);
  host_.now += 1000;
  clock_.show_all();
  run(clock_, 500, ExitCause::pmu);
  host_.now += 1000;
  run(clock_, 500, ExitCause::pmu);
  EXPECT_EQ(clock_.statistics().hidden_ticks, hidden);
  EXPECT_EQ(*host_.offset, offset) << "and nothing of it is given back";
}

}  // namespace
}  // namespace vmm::test
