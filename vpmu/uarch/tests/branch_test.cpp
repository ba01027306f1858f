#include "uarch/branch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace vpmu::uarch::test {
namespace {

const BranchShapes& shapes() { return find_profile("skylake")->branches; }

Branch jcc(bool taken, std::uint64_t at = 0x1000) {
  return {.at = at,
          .fall_through = at + 2,
          .to = taken ? at - 64 : at + 2,
          .kind = BranchKind::conditional,
          .taken = taken};
}
Branch call(std::uint64_t at) {
  return {.at = at, .fall_through = at + 5, .to = 0x9000, .kind = BranchKind::near_rel_call, .taken = true};
}
Branch ret(std::uint64_t to) {
  return {.at = 0x9008, .fall_through = 0x9009, .to = to, .kind = BranchKind::near_ret, .taken = true};
}
Branch jump(std::uint64_t to) {
  return {.at = 0x2000, .fall_through = 0x2002, .to = to, .kind = BranchKind::near_ind_jmp, .taken = true};
}

/// The high bit of a linear congruential generator: no branch history predicts it.
class Coin {
 public:
  bool flip() {
    state_ = state_ * 6'364'136'223'846'793'005ULL + 1'442'695'040'888'963'407ULL;
    return state_ >> 63 != 0;
  }

 private:
  std::uint64_t state_{1};
};

bool is_missed(BranchPredictor& p, const Branch& branch) { return p.retire(branch) == Foreseen::by_execution; }

template <class F>
unsigned misses(BranchPredictor& p, unsigned times, F next) {
  unsigned n = 0;
  for (unsigned i = 0; i < times; ++i) n += is_missed(p, next(i)) ? 1 : 0;
  return n;
}

TEST(BranchPredictor, MissesHalfOfACoin) {
  BranchPredictor p{shapes()};
  Coin coin;
  const unsigned n = misses(p, 100'000, [&](unsigned) { return jcc(coin.flip()); });
  EXPECT_GT(n, 45'000U);
  EXPECT_LT(n, 55'000U);
}

TEST(BranchPredictor, FollowsCallsAsDeepAsItsStack) {
  for (const unsigned depth : {1U, 16U, 17U, 20U}) {
    BranchPredictor p{shapes()};
    std::vector<std::uint64_t> frames;
    for (unsigned d = 0; d < depth; ++d) {
      EXPECT_FALSE(is_missed(p, call(0x100 * d)));
      frames.push_back(0x100 * d + 5);
    }
    unsigned missed = 0;
    for (; !frames.empty(); frames.pop_back()) missed += is_missed(p, ret(frames.back())) ? 1 : 0;
    EXPECT_EQ(missed, depth > 16 ? depth - 16 : 0) << depth;
  }
}

TEST(BranchPredictor, MissesAReturnToElsewhere) {
  BranchPredictor p{shapes()};
  p.retire(call(0x100));
  EXPECT_TRUE(is_missed(p, ret(0x105 + 1)));
}

TEST(BranchPredictor, LearnsIndirectTargets) {
  BranchPredictor p{shapes()};
  EXPECT_TRUE(is_missed(p, jump(0x5000))) << "never seen";
  misses(p, 100, [](unsigned) { return jump(0x5000); });
  EXPECT_EQ(misses(p, 100, [](unsigned) { return jump(0x5000); }), 0U);
  EXPECT_TRUE(is_missed(p, jump(0x6000)));
}

Branch direct(std::uint64_t at) {
  return {.at = at, .fall_through = at + 2, .to = 0x80, .kind = BranchKind::near_rel_jmp, .taken = true};
}

TEST(BranchPredictor, TheDecoderFindsADirectBranchThatIsNotKnown) {
  BranchPredictor p{shapes()};
  EXPECT_EQ(p.retire(direct(0x10)), Foreseen::by_decoder);
  EXPECT_EQ(p.retire(direct(0x10)), Foreseen::by_prediction);
  EXPECT_EQ(p.retire(jcc(false, 0x40)), Foreseen::by_execution) << "a counter begins as taken";
  EXPECT_EQ(p.retire(jcc(false, 0x40)), Foreseen::by_prediction) << "no target is needed";
  EXPECT_EQ(p.retire({.at = 0x10, .fall_through = 0x12, .to = 0x80, .kind = BranchKind::far, .taken = true}),
            Foreseen::by_execution);
}

TEST(BranchPredictor, TheSameBranchesGiveTheSameMisses) {
  const auto run = [](BranchPredictor& p) {
    Coin coin;
    std::vector<Foreseen> missed;
    for (unsigned i = 0; i < 5000; ++i) {
      missed.push_back(p.retire(jcc(coin.flip(), 0x1000 + i % 7 * 16)));
      missed.push_back(p.retire(jump(0x3000 + i % 3 * 64)));
      if (i % 5 == 0) missed.push_back(p.retire(call(i)));
      if (i % 6 == 0) missed.push_back(p.retire(ret(i)));
    }
    return missed;
  };
  BranchPredictor p{shapes()}, other{shapes()};
  const auto first = run(p);
  EXPECT_EQ(run(other), first);
  EXPECT_NE(run(p), first) << "it has learned";
}

/// What is published of a generation's predictor, tried on patterns.
struct Generation {
  std::string_view name;
  unsigned loop, no_loop;      ///< Iterations of a loop whose end is predicted, and of one whose end is not.
  unsigned busy_loop;          ///< The same of one with a branch inside that nobody predicts; 0: none is.
  unsigned period, no_period;  ///< In a loop, of a branch that is taken once in so many times.
  unsigned apart, too_apart;   ///< Branches between two that go the same way.
};
std::string name_of(const testing::TestParamInfo<Generation>& info) { return std::string{info.param.name}; }
void PrintTo(const Generation& g, std::ostream* out) { *out << g.name; }

// A. Fog: 18 outcomes and counters of loops, for up to 64 iterations (Nehalem); 32 outcomes, no counters, "nested loops
// and loops with branches inside are not predicted particularly well" (Sandy Bridge). A path of 93 taken branches:
// jia.je for Ivy Bridge, Haswell and Skylake.
constexpr std::array published{
    Generation{"nehalem", 60, 90, 60, 9, 12, 14, 24},     Generation{"westmere", 60, 90, 60, 9, 12, 14, 24},
    Generation{"sandybridge", 30, 40, 0, 15, 20, 28, 40}, Generation{"ivybridge", 88, 120, 0, 85, 110, 80, 100},
    Generation{"haswell", 88, 120, 0, 85, 110, 80, 100},  Generation{"broadwell", 88, 120, 0, 85, 110, 80, 100},
    Generation{"skylake", 88, 120, 0, 85, 110, 80, 100}};

class Patterns : public testing::TestWithParam<Generation> {
 protected:
  /// Mispredictions in a round, in 200 rounds after many others. `round` is given a way to retire a branch.
  using Retire = std::function<void(const Branch&)>;
  static double misses_of(const std::function<void(const Retire&, unsigned)>& round) {
    BranchPredictor predictor{find_profile(GetParam().name)->branches};
    unsigned missed = 0;
    const Retire retire = [&](const Branch& branch) { missed += is_missed(predictor, branch) ? 1 : 0; };
    constexpr unsigned before = 20'000, rounds = 200;
    for (unsigned n = 0; n < before; ++n) round(retire, n);
    missed = 0;
    for (unsigned n = 0; n < rounds; ++n) round(retire, before + n);
    return missed / double{rounds};
  }
  static Branch back(bool taken, std::uint64_t at) {
    return {.at = at,
            .fall_through = at + 2,
            .to = taken ? at - 40 : at + 2,
            .kind = BranchKind::conditional,
            .taken = taken};
  }
  double misses_of_loop(unsigned iterations) {
    return misses_of([=](const Retire& retire, unsigned) {
      for (unsigned n = 1; n <= iterations; ++n) retire(back(n != iterations, 0x401234));
      retire(back(true, 0x401456));
    });
  }
  double misses_of_busy_loop(unsigned iterations) {
    Coin coin;
    return misses_of([=](const Retire& retire, unsigned) mutable {
      for (unsigned n = 1; n <= iterations; ++n) {
        retire(jcc(coin.flip(), 0x401210));
        retire(back(n != iterations, 0x401234));
      }
      retire(back(true, 0x401456));
    });
  }
  double misses_of_period(unsigned period) {
    return misses_of([=](const Retire& retire, unsigned round) {
      retire(jcc(round % period == 0, 0x401210));
      retire(back(true, 0x401234));
    });
  }
  /// Two branches that go the same way, with so many others between them.
  double misses_of_pair(unsigned apart) {
    Coin coin;
    return misses_of([=](const Retire& retire, unsigned) mutable {
      const bool taken = coin.flip();
      retire(jcc(taken, 0x401210));
      for (unsigned n = 0; n < apart; ++n) retire(back(true, 0x402000 + n % 8 * 64));
      retire(jcc(taken, 0x403210));
      retire(back(true, 0x401234));
    });
  }
};

TEST_P(Patterns, EndsOfLoopsArePredicted) {
  const Generation& g = GetParam();
  for (const unsigned iterations : {3U, 8U, 17U, g.loop}) EXPECT_LT(misses_of_loop(iterations), 0.05) << iterations;
  EXPECT_NEAR(misses_of_loop(g.no_loop), 1, 0.05);
}

TEST_P(Patterns, EndsOfLoopsWithOtherBranches) {
  const Generation& g = GetParam();
  constexpr unsigned iterations = 20;
  const double others = iterations / 2.0;
  const double missed = misses_of_busy_loop(g.busy_loop != 0 ? g.busy_loop : iterations);
  if (g.busy_loop != 0)
    EXPECT_NEAR(missed, g.busy_loop / 2.0, 3);
  else
    EXPECT_NEAR(missed, others + 3, 2.5);
}

TEST_P(Patterns, RepeatedPatternsArePredicted) {
  const Generation& g = GetParam();
  for (const unsigned period : {2U, 3U, 7U, g.period}) EXPECT_LT(misses_of_period(period), 0.02) << period;
  EXPECT_NEAR(misses_of_period(g.no_period), 1.0 / g.no_period, 0.6 / g.no_period);
}

TEST_P(Patterns, CorrelatedBranchesArePredicted) {
  const Generation& g = GetParam();
  for (const unsigned apart : {0U, 5U, g.apart}) EXPECT_NEAR(misses_of_pair(apart), 0.5, 0.15) << apart;
  EXPECT_GT(misses_of_pair(g.too_apart), 0.8);
}

// Rohou, Swamy and Seznec, "Branch Prediction and the Performance of Interpreters" (2015): Haswell predicts the targets
// of a switch in an interpreter nearly always.
TEST_P(Patterns, TargetsOfAnInterpretersSwitch) {
  std::vector<unsigned> program;
  for (Coin coin; program.size() < 40;)
    program.push_back((coin.flip() ? 4U : 0U) + (coin.flip() ? 2U : 0U) + (coin.flip() ? 1U : 0U));
  const double missed = misses_of([=](const Retire& retire, unsigned) {
    for (const unsigned operation : program) {
      const std::uint64_t to = 0x405000 + operation * 0x90;
      retire({.at = 0x401020, .fall_through = 0x401022, .to = to, .kind = BranchKind::near_ind_jmp, .taken = true});
      retire({.at = to + 7, .fall_through = to + 12, .to = 0x401000, .kind = BranchKind::near_rel_jmp, .taken = true});
    }
    retire(back(true, 0x401456));
  });
  EXPECT_LT(missed, 0.1) << "of 40";
}

INSTANTIATE_TEST_SUITE_P(Published, Patterns, testing::ValuesIn(published), name_of);

// Godbolt: 4096 branches are known if four of them are in each 16 bytes; farther apart fewer on Ivy Bridge, and as many
// on Haswell up to 24 bytes.
TEST(TargetBuffer, KnowsAsManyBranchesAsWereMeasured) {
  const auto unknown = [](std::string_view name, unsigned branches, unsigned bytes_apart) {
    TargetBuffer buffer{find_profile(name)->branches};
    unsigned missing = 0;
    for (unsigned round = 0; round < 3; ++round) {
      missing = 0;
      for (unsigned n = 0; n < branches; ++n)
        missing += buffer.touch(0x40'0000 + std::uint64_t{n} * bytes_apart) ? 0 : 1;
    }
    return missing;
  };
  for (const std::string_view name : {"ivybridge", "haswell"}) {
    EXPECT_EQ(unknown(name, 4096, 4), 0U) << name;
    EXPECT_GT(unknown(name, 5000, 4), 900U) << name;
  }
  EXPECT_EQ(unknown("ivybridge", 1024, 64), 0U);
  EXPECT_EQ(unknown("ivybridge", 2048, 64), 2048U);
  EXPECT_EQ(unknown("haswell", 4096, 16), 0U);
  EXPECT_EQ(unknown("nehalem", 4096, 4), 4096U);
}

}  // namespace
}  // namespace vpmu::uarch::test
