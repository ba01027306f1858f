#include "uarch/branch.hpp"

#include <gtest/gtest.h>

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

template <class F>
unsigned misses(BranchPredictor& p, unsigned times, F next) {
  unsigned n = 0;
  for (unsigned i = 0; i < times; ++i) n += p.retire(next(i)) ? 1 : 0;
  return n;
}

TEST(BranchPredictor, LearnsALoop) {
  BranchPredictor p{shapes()};
  misses(p, 1000, [](unsigned i) { return jcc(i % 8 != 7); });
  EXPECT_EQ(misses(p, 8000, [](unsigned i) { return jcc(i % 8 != 7); }), 0U)
      << "the exit too: the history is longer than the loop";
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
      EXPECT_FALSE(p.retire(call(0x100 * d)));
      frames.push_back(0x100 * d + 5);
    }
    unsigned missed = 0;
    for (; !frames.empty(); frames.pop_back()) missed += p.retire(ret(frames.back())) ? 1 : 0;
    EXPECT_EQ(missed, depth > 16 ? depth - 16 : 0) << depth;
  }
}

TEST(BranchPredictor, MissesAReturnToElsewhere) {
  BranchPredictor p{shapes()};
  p.retire(call(0x100));
  EXPECT_TRUE(p.retire(ret(0x105 + 1)));
}

TEST(BranchPredictor, LearnsIndirectTargets) {
  BranchPredictor p{shapes()};
  EXPECT_TRUE(p.retire(jump(0x5000))) << "never seen";
  misses(p, 100, [](unsigned) { return jump(0x5000); });
  EXPECT_EQ(misses(p, 100, [](unsigned) { return jump(0x5000); }), 0U);
  EXPECT_TRUE(p.retire(jump(0x6000)));
}

TEST(BranchPredictor, DirectBranchesAreKnown) {
  BranchPredictor p{shapes()};
  EXPECT_FALSE(
      p.retire({.at = 0x10, .fall_through = 0x12, .to = 0x80, .kind = BranchKind::near_rel_jmp, .taken = true}));
  EXPECT_TRUE(p.retire({.at = 0x10, .fall_through = 0x12, .to = 0x80, .kind = BranchKind::far, .taken = true}));
}

TEST(BranchPredictor, TheSameBranchesGiveTheSameMisses) {
  const auto run = [](BranchPredictor& p) {
    Coin coin;
    std::vector<bool> missed;
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

}  // namespace
}  // namespace vpmu::uarch::test
