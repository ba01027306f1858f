// Whose turn it is, the engine's or the back end's.
#include <gtest/gtest.h>

#include <array>

#include "sources/turns.hpp"

namespace vmm::test {
namespace {

using Phase = Turns::Phase;
using Event = Turns::Event;

/// The phase that follows, by phase and event.
struct PhaseRow {
  Phase phase;
  std::array<std::optional<Phase>, 5> next;  ///< After take, stop, exit, go_on, give_back.
};
constexpr std::optional<Phase> no{};
constexpr std::array phase_rows{
    PhaseRow{Phase::back_end, {Phase::engine, no, no, no, no}},
    PhaseRow{Phase::engine, {no, Phase::stopped, no, no, Phase::back_end}},
    PhaseRow{Phase::stopped, {no, no, Phase::in_exit, Phase::engine, Phase::back_end}},
    PhaseRow{Phase::in_exit, {no, no, no, Phase::engine, no}},
};

TEST(Turns, HaveAPhaseAfterEachEventOrCannotHaveIt) {
  for (const PhaseRow& row : phase_rows)
    for (unsigned event = 0; event < row.next.size(); ++event)
      EXPECT_EQ(Turns::next(row.phase, static_cast<Event>(event)), row.next[event])
          << "phase " << static_cast<unsigned>(row.phase) << ", event " << event;
}

TEST(Turns, BeginWithTheBackEnd) {
  Turns turns;
  EXPECT_EQ(turns.phase(), Phase::back_end);
  EXPECT_FALSE(turns.is_held());
  EXPECT_TRUE(turns.is_free());
  turns.count(true);
  EXPECT_FALSE(turns.is_free());
  for (const Event event : {Event::take, Event::stop, Event::exit, Event::go_on}) {
    turns.on(event);
    EXPECT_TRUE(turns.is_held());
  }
  turns.on(Event::give_back);
  EXPECT_FALSE(turns.is_held());
}

TEST(TurnsDeathTest, DoNotTakeAVcpuTwice) {
  Turns turns;
  turns.on(Event::take);
  EXPECT_DEATH(turns.on(Event::take), "phase.has_value");
}

TEST(Turns, AreOverAfterABurst) {
  Turns turns;
  turns.count(true);
  EXPECT_EQ(turns.at_once(), Turns::burst);
  turns.pass(Turns::burst - 1);
  EXPECT_EQ(turns.left(), 1U);
  turns.pass(2);
  EXPECT_EQ(turns.left(), 0U);
  turns.allow(7);
  EXPECT_EQ(turns.left(), 7U);
  turns.allow(Turns::burst + 1);
  EXPECT_EQ(turns.left(), Turns::burst);
  turns.pass(1);
  turns.come_out();
  EXPECT_EQ(turns.left(), Turns::burst);
}

TEST(Turns, AreDelayedOnlySoOften) {
  Turns turns;
  turns.count(true);
  turns.pass(Turns::burst);
  unsigned delays = 0;
  for (; turns.may_delay() && delays <= Turns::max_delay; ++delays) {
    turns.delay();
    ASSERT_EQ(turns.left(), 1U);
    turns.pass(1);
  }
  EXPECT_EQ(delays, Turns::max_delay);
  turns.come_out();
  EXPECT_FALSE(turns.may_delay()) << "the back end had no turn";
  turns.hand_over();
  EXPECT_TRUE(turns.may_delay());
  EXPECT_EQ(turns.left(), Turns::burst);
}

TEST(Turns, AreCalledOffOnceForAnEvent) {
  Turns turns;
  turns.count(true);
  turns.on(Event::take);
  EXPECT_FALSE(turns.is_called_off(true));
  turns.raise();
  EXPECT_TRUE(turns.is_raised());
  EXPECT_TRUE(turns.is_called_off(true));
  EXPECT_FALSE(turns.is_raised());
  EXPECT_FALSE(turns.is_called_off(true));
}

/// Something was counted, and the engine holds the vCPU; now nothing is.
Turns paused(bool stays) {
  Turns turns;
  if (stays) turns.stay_in_pauses();
  turns.count(true);
  turns.on(Event::take);
  turns.count(false);
  return turns;
}

TEST(TurnsInAPause, AreCalledOffUnlessNobodyElseCountsAndTheClockStands) {
  EXPECT_TRUE(paused(false).is_called_off(true));
  EXPECT_TRUE(paused(true).is_called_off(false));
  EXPECT_FALSE(paused(true).is_called_off(true));
}

TEST(TurnsInAPause, LastForABoundedTime) {
  Turns turns = paused(true);
  turns.allow(1);
  turns.extend_pause();
  EXPECT_EQ(turns.left(), Turns::max_pause);
  EXPECT_EQ(turns.at_once(), Turns::max_pause);
  turns.come_out();
  EXPECT_EQ(turns.at_once(), Turns::max_pause) << "not for a whole burst";
  turns.pass(Turns::max_pause - 1);
  EXPECT_EQ(turns.at_once(), 1U);
  EXPECT_FALSE(turns.is_called_off(true));
  turns.pass(1);
  EXPECT_TRUE(turns.is_called_off(true));
  turns.count(true);
  turns.count(false);
  EXPECT_FALSE(turns.is_called_off(true)) << "the next pause";
}

}  // namespace
}  // namespace vmm::test
