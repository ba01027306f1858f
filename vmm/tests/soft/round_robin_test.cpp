// Turns of processors: their order, their length, and who gets the next one.
#include "soft/round_robin.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <vector>

namespace vmm::test {
namespace {

/// A processor whose state a test sets directly.
class FakeTaker final : public TurnTaker {
 public:
  bool is_ready() override { return wakes_at <= clock->now() && !halted; }
  std::uint64_t until_ready() override { return halted ? ~0ULL : wakes_at - clock->now(); }
  bool may_be_woken() override { return by_device; }
  void kick() override { kicked = true; }

  MachineClock* clock{};
  std::atomic<bool> kicked{};
  bool halted{}, by_device{};
  std::uint64_t wakes_at{};
};

class TurnsTest : public testing::Test {
 protected:
  /// Runs `body(id)` for `count` processors, each on a thread of its own.
  void run(unsigned count, const Schedule& schedule, const std::function<void(unsigned)>& body) {
    turns_.emplace(clock_, schedule);
    takers_ = std::vector<FakeTaker>(count);
    for (FakeTaker& taker : takers_) {
      taker.clock = &clock_;
      turns_->add(taker);
    }
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < count; ++id)
      threads.emplace_back([&, id] {
        body(id);
        turns_->leave(id);
      });
    for (std::thread& thread : threads) thread.join();
  }
  /// Lets instructions pass as a processor's run() does, at most `at_once` at a time.
  void pass(unsigned id, std::uint64_t instructions, std::uint64_t at_once = ~0ULL) {
    while (instructions != 0) {
      turns_->hold(id);
      ASSERT_TRUE(turns_->owns(id));
      const std::uint64_t now = std::min({instructions, turns_->left(id), at_once});
      ASSERT_NE(now, 0U);
      log_.emplace_back(id, now);
      clock_.pass(now);
      turns_->pass(now);
      instructions -= now;
    }
  }
  using Log = std::vector<std::pair<unsigned, std::uint64_t>>;

  MachineClock clock_;
  std::optional<RoundRobin> turns_;
  std::vector<FakeTaker> takers_;
  Log log_;
};

TEST_F(TurnsTest, GoRoundInOrder) {
  run(3, {.turn = 100}, [&](unsigned id) { pass(id, 200); });
  EXPECT_EQ(log_, (Log{{0, 100}, {1, 100}, {2, 100}, {0, 100}, {1, 100}, {2, 100}}));
  EXPECT_EQ(clock_.now(), 400U / 3 + 50 + 100) << "three share it, then those two that have not left, then the last";
}

TEST_F(TurnsTest, AreTheSameEachTimeBySeed) {
  const auto with_seed = [&](std::uint64_t seed) {
    log_.clear();
    run(3, {.turn = 100, .seed = seed}, [&](unsigned id) { pass(id, 1000); });
    return log_;
  };
  const Log first = with_seed(1);
  EXPECT_EQ(with_seed(1), first);
  EXPECT_NE(with_seed(2), first);
  EXPECT_TRUE(std::ranges::all_of(first, [](const auto& turn) { return turn.second < 200; }));
  EXPECT_TRUE(std::ranges::any_of(first, [](const auto& turn) { return turn.second > 100; }));
}

// One instruction may take many ticks: nobody can stop within it.
TEST_F(TurnsTest, WhoRunsBeyondItsTurnHasLessOfTheNext) {
  unsigned compared = 0;
  run(2, {.turn = 100}, [&](unsigned id) {
    std::uint64_t left = 10'000;
    while (left != 0) {
      turns_->hold(id);
      const std::uint64_t now = std::min<std::uint64_t>(left, id == 0 ? 950 : turns_->left(id));
      log_.emplace_back(id, now);
      turns_->pass(now);
      left -= now;
      std::array<std::uint64_t, 2> ran{};
      for (const auto& [who, ticks] : log_) ran[who] += ticks;
      if (ran[0] == 10'000 || ran[1] == 10'000) continue;
      EXPECT_LE(ran[0], ran[1] + 950 + 100);
      EXPECT_LE(ran[1], ran[0] + 100);
      ++compared;
    }
  });
  EXPECT_GT(compared, 50U);
}

// A processor that is ahead and then rests owes nothing afterwards: the others have had the time.
TEST_F(TurnsTest, WhoRestsIsNoLongerAhead) {
  run(2, {.turn = 100}, [&](unsigned id) {
    turns_->hold(id);
    if (id == 0) {
      turns_->pass(5000);
      takers_[0].wakes_at = 200;
      turns_->hold(0);
      log_.emplace_back(0, turns_->left(0));
      return;
    }
    clock_.pass(400);
    pass(1, 100);
    pass(1, 100);
  });
  EXPECT_EQ(log_, (Log{{1, 100}, {0, 100}, {1, 100}})) << "it has a whole turn again";
}

TEST_F(TurnsTest, AreShortWhileProcessorsContend) {
  std::vector<std::uint64_t> lengths;
  run(2, {.turn = 50'000}, [&](unsigned id) {
    for (unsigned n = 0; n < 20; ++n) {
      turns_->hold(id);
      lengths.push_back(turns_->left(id));
      if (lengths.size() <= 20) turns_->contend();
      turns_->pass(turns_->left(id));
    }
  });
  ASSERT_EQ(lengths.size(), 40U);
  EXPECT_EQ(lengths[0], 50'000U);
  // Half of what follows is by chance.
  const auto is_about = [](std::uint64_t length, std::uint64_t turn) {
    EXPECT_GE(length, turn / 2);
    EXPECT_LT(length, turn / 2 + turn);
  };
  is_about(lengths[1], 12'500);
  for (unsigned n = 8; n <= 20; ++n) is_about(lengths[n], RoundRobin::shortest);
  EXPECT_GT(std::set(lengths.begin() + 8, lengths.begin() + 20).size(), 4U) << "turns do not keep in step with a loop";
  is_about(lengths[21], 2 * RoundRobin::shortest);
  EXPECT_EQ(lengths[35], 50'000U);
}

// A single processor needs no turns.
TEST_F(TurnsTest, OneAloneHasNoTurns) {
  run(1, {.turn = 100}, [&](unsigned id) { pass(id, 1000); });
  EXPECT_EQ(log_, (Log{{0, 1000}}));
}

TEST_F(TurnsTest, WhoRestsGivesItsTurnAway) {
  run(2, {.turn = 100}, [&](unsigned id) {
    if (id == 1) return pass(id, 150);
    pass(id, 30);
    takers_[id].halted = true;
    EXPECT_EQ(turns_->rest(), RoundRobin::Waker::processor);
  });
  EXPECT_EQ(log_, (Log{{0, 30}, {1, 100}, {1, 50}}));
  EXPECT_EQ(clock_.now(), 15U + 150U) << "the time is its own once the other rests";
}

TEST_F(TurnsTest, WhereAllRestTimeGoesOn) {
  run(2, {.turn = 100}, [&](unsigned id) {
    turns_->hold(id);
    takers_[id].wakes_at = id == 0 ? 5000 : 3000;
    EXPECT_EQ(turns_->rest(), RoundRobin::Waker::processor);
    EXPECT_EQ(clock_.now(), id == 0 ? 0U : 3000U) << "where the other is ready, and then to whoever wakes first";
    pass(id, 1);
    takers_[id].halted = true;
    if (id == 0) return;
    EXPECT_EQ(turns_->rest(), RoundRobin::Waker::processor);
  });
  EXPECT_EQ(log_, (Log{{1, 1}, {0, 1}}));
}

TEST_F(TurnsTest, TellsWhoCouldWakeTheMachine) {
  run(1, {}, [&](unsigned id) {
    turns_->hold(id);
    takers_[id].halted = true;
    EXPECT_EQ(turns_->rest(), RoundRobin::Waker::nobody);
    takers_[id].by_device = true;
    EXPECT_EQ(turns_->rest(), RoundRobin::Waker::device);
  });
}

// A kicked processor looks at its kick at once, but the order of turns stays the same.
TEST_F(TurnsTest, WhoIsKickedIsLetInAndGivesTheTurnBack) {
  unsigned let_in = 0;
  run(2, {.turn = 100}, [&](unsigned id) {
    if (id == 0) {
      pass(id, 10);
      turns_->kicked(1);
      EXPECT_TRUE(takers_[0].kicked) << "so that it looks soon";
      turns_->hold(0);
      EXPECT_EQ(let_in, 1U);
      EXPECT_EQ(turns_->left(0), 90U) << "its own turn goes on";
      return pass(id, 90);
    }
    turns_->hold(1);
    EXPECT_TRUE(takers_[1].kicked);
    EXPECT_FALSE(turns_->owns(1));
    EXPECT_EQ(turns_->left(1), 0U);
    ++let_in;
    while (!turns_->owns(1)) turns_->hold(1);
    pass(id, 100);
  });
  EXPECT_EQ(let_in, 1U);
  EXPECT_EQ(log_, (Log{{0, 10}, {0, 90}, {1, 100}}));
}

// Otherwise a processor that is stopped for a snapshot would keep the others from being stopped.
TEST_F(TurnsTest, WhoLetsGoKeepsNobodyOut) {
  std::atomic<bool> other_was_in{};
  run(2, {.turn = 100}, [&](unsigned id) {
    turns_->hold(id);
    if (id == 0) {
      turns_->kicked(1);
      turns_->let_go(0);
      while (!other_was_in) std::this_thread::yield();
      pass(id, 10);
    } else {
      EXPECT_FALSE(turns_->owns(id));
      other_was_in = true;
      pass(id, 0);
    }
  });
  EXPECT_EQ(log_, (Log{{0, 10}}));
}

TEST_F(TurnsTest, KicksFromOutsideAtAnyTimeChangeNoOrder) {
  std::atomic<bool> done{};
  std::thread kicker;
  const Log quiet = [&] {
    run(3, {.turn = 50, .seed = 3}, [&](unsigned id) { pass(id, 20'000, 10); });
    return log_;
  }();
  log_.clear();
  run(3, {.turn = 50, .seed = 3}, [&](unsigned id) {
    if (id == 0)
      kicker = std::thread{[&] {
        for (unsigned n = 0; !done; ++n) turns_->kicked(n % 3);
      }};
    constexpr std::uint64_t at_once = 10;
    for (std::uint64_t rest = 20'000; rest != 0;) {
      turns_->hold(id);
      if (!turns_->owns(id)) continue;
      const std::uint64_t now = std::min({rest, turns_->left(id), at_once});
      log_.emplace_back(id, now);
      clock_.pass(now);
      turns_->pass(now);
      rest -= now;
    }
    if (id == 0) {
      done = true;
      kicker.join();
    }
  });
  EXPECT_EQ(log_, quiet);
}

TEST(MachineClock, IsSharedByThoseThatRun) {
  MachineClock clock;
  clock.share(4);
  clock.pass(10);
  EXPECT_EQ(clock.now(), 2U);
  EXPECT_EQ(clock.after(2), 3U);
  EXPECT_EQ(clock.instructions_in(1), 2U);
  EXPECT_EQ(clock.instructions_in(~0ULL), ~0ULL);
  clock.pass(2);
  EXPECT_EQ(clock.now(), 3U);
  clock.share(2);
  clock.pass(1);
  EXPECT_EQ(clock.now(), 3U);
  clock.share(1);
  clock.pass(1);
  EXPECT_EQ(clock.now(), 4U) << "it never goes back";
}

}  // namespace
}  // namespace vmm::test
