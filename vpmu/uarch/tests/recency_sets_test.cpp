#include "uarch/recency_sets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

namespace vpmu::uarch::test {
namespace {

/// A naive model of RecencySets: a list for each set, which is searched and reordered.
class NaiveSets {
 public:
  explicit NaiveSets(Shape shape) : shape_{shape}, sets_(shape.sets) {}
  bool touch(std::uint64_t key) {
    std::list<std::uint64_t>& set = sets_[key % shape_.sets];
    const auto at = std::ranges::find(set, key);
    if (at == set.end()) return false;
    set.erase(at);
    set.push_back(key);
    return true;
  }
  std::uint64_t insert(std::uint64_t key) {
    std::list<std::uint64_t>& set = sets_[key % shape_.sets];
    set.push_back(key);
    if (set.size() <= shape_.ways) return RecencySets::nothing;
    const std::uint64_t victim = set.front();
    set.pop_front();
    return victim;
  }
  bool remove(std::uint64_t key) { return sets_[key % shape_.sets].remove(key) != 0; }

 private:
  Shape shape_;
  std::vector<std::list<std::uint64_t>> sets_;
};

TEST(RecencySets, AgreesWithListsOnRandomTraces) {
  std::mt19937_64 random{1};
  unsigned hits = 0, victims = 0, removed = 0;
  for (const Shape shape : {Shape{1, 1}, Shape{1, 7}, Shape{4, 2}, Shape{16, 8}, Shape{64, 12}, Shape{2, 20}}) {
    RecencySets sets{shape};
    NaiveSets naive{shape};
    for (unsigned step = 0; step < 20'000; ++step) {
      const std::uint64_t key = random() % (shape.entries() * 2) * (random() % 8 == 0 ? 1'000'003 : 1);
      if (random() % 16 == 0) {
        const bool there = naive.remove(key);
        ASSERT_EQ(sets.remove(key), there) << step;
        removed += there ? 1 : 0;
        continue;
      }
      const bool hit = naive.touch(key);
      ASSERT_EQ(sets.contains(key), hit) << step;
      ASSERT_EQ(sets.touch(key), hit) << step;
      hits += hit ? 1 : 0;
      if (hit) continue;
      const std::uint64_t victim = naive.insert(key);
      ASSERT_EQ(sets.insert(key), victim) << step;
      victims += victim != RecencySets::nothing ? 1 : 0;
    }
  }
  EXPECT_GT(hits, 10'000U);
  EXPECT_GT(victims, 10'000U);
  EXPECT_GT(removed, 1000U);
}

// Keys of the largest size must be compared as a whole.
TEST(RecencySets, KeepsAllOfATag) {
  RecencySets sets{{.sets = 2, .ways = 1}};
  constexpr std::uint64_t large = (1ULL << 33) - 1;
  EXPECT_EQ(sets.insert(large), RecencySets::nothing);
  EXPECT_FALSE(sets.touch(large - (1ULL << 32)));
  EXPECT_EQ(sets.insert(1), large);
}

// Two ways: 0 and 2 fill the set, using 0 again makes 2 the oldest.
TEST(RecencySets, ReplacesTheLeastRecentlyUsed) {
  RecencySets sets{{.sets = 2, .ways = 2}};
  EXPECT_EQ(sets.insert(0), RecencySets::nothing);
  EXPECT_EQ(sets.insert(2), RecencySets::nothing);
  EXPECT_TRUE(sets.touch(0));
  EXPECT_EQ(sets.insert(4), 2U);
  EXPECT_TRUE(sets.contains(0));
  EXPECT_EQ(sets.insert(1), RecencySets::nothing) << "the other set";
}

TEST(RecencySets, WithoutSetsHoldsNothing) {
  RecencySets sets{{}};
  EXPECT_EQ(sets.insert(1), RecencySets::nothing);
  EXPECT_FALSE(sets.touch(1));
  EXPECT_FALSE(sets.remove(1));
}

TEST(RecencySets, ClearForgetsAll) {
  RecencySets sets{{.sets = 2, .ways = 2}};
  sets.insert(5);
  ASSERT_TRUE(sets.touch(5));
  sets.clear();
  EXPECT_FALSE(sets.touch(5));
}

}  // namespace
}  // namespace vpmu::uarch::test
