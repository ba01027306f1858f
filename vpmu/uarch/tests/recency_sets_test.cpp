#include "uarch/recency_sets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <utility>
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

/// A set with a tree, as hardware has it: keys stay in their ways, and a node tells in which half the victim is.
class NaiveTree {
 public:
  explicit NaiveTree(std::uint32_t ways) : keys_(ways, RecencySets::nothing), nodes_(ways) {}
  bool touch(std::uint64_t key) {
    const auto at = std::ranges::find(keys_, key);
    if (at == keys_.end()) return false;
    use(static_cast<std::size_t>(at - keys_.begin()));
    return true;
  }
  std::uint64_t insert(std::uint64_t key) {
    std::size_t node = 1;
    while (node < keys_.size()) node = 2 * node + (nodes_[node] ? 1 : 0);
    const std::size_t way = node - keys_.size();
    use(way);
    return std::exchange(keys_[way], key);
  }

 private:
  void use(std::size_t way) {
    for (std::size_t node = way + keys_.size(); node > 1; node /= 2) nodes_[node / 2] = node % 2 == 0;
  }
  std::vector<std::uint64_t> keys_;
  std::vector<bool> nodes_;
};

// uops.info/cache.html, PLRU.
TEST(RecencySets, WithATreeEvictWhatItsNodesTell) {
  std::mt19937_64 random{1};
  unsigned hits = 0, victims = 0, other_than_oldest = 0;
  for (const std::uint32_t ways : {4U, 8U}) {
    constexpr std::uint32_t count = 4;
    RecencySets sets{{.sets = count, .ways = ways}};
    sets.replace_by_tree();
    std::vector<NaiveTree> trees(count, NaiveTree{ways});
    NaiveSets oldest{{.sets = count, .ways = ways}};
    for (unsigned step = 0; step < 20'000; ++step) {
      // At first all are filled in order: which empty way is taken else, no one knows.
      const std::uint64_t all = std::uint64_t{count} * ways, key = step < all ? step : random() % (all * 3 / 2);
      NaiveTree& tree = trees[key % count];
      const bool hit = tree.touch(key);
      ASSERT_EQ(sets.touch(key), hit) << step;
      if (!oldest.touch(key)) oldest.insert(key);
      hits += hit ? 1 : 0;
      if (!hit) {
        const std::uint64_t victim = tree.insert(key);
        ASSERT_EQ(sets.insert(key), victim) << step;
        victims += victim != RecencySets::nothing ? 1 : 0;
        other_than_oldest += victim != RecencySets::nothing && oldest.touch(victim) ? 1 : 0;
      }
      ASSERT_TRUE(sets.is_latest(key)) << step;
    }
  }
  EXPECT_GT(hits, 10'000U);
  EXPECT_GT(victims, 5'000U);
  EXPECT_GT(other_than_oldest, 500U) << "it is no list of uses";
}

TEST(RecencySets, WithATreeTakeAnEmptyWayFirst) {
  RecencySets sets{{.sets = 1, .ways = 8}};
  sets.replace_by_tree();
  for (std::uint64_t key = 0; key < 8; ++key) EXPECT_EQ(sets.insert(key), RecencySets::nothing);
  sets.replace_by_tree();
  for (std::uint64_t key = 0; key < 8; ++key) {
    ASSERT_TRUE(sets.remove(key)) << "a second call changes nothing";
    EXPECT_FALSE(sets.contains(key));
    EXPECT_EQ(sets.insert(key + 100), RecencySets::nothing) << key;
  }
  EXPECT_NE(sets.insert(200), RecencySets::nothing);
  sets.clear();
  EXPECT_EQ(sets.insert(1), RecencySets::nothing);
}

TEST(RecencySets, OtherWaysHaveNoTree) {
  const auto differ = [](std::uint32_t ways) {
    std::mt19937_64 random{1};
    RecencySets sets{{.sets = 1, .ways = ways}}, oldest{{.sets = 1, .ways = ways}};
    sets.replace_by_tree();
    bool seen = false;
    for (unsigned n = 0; n < 1000; ++n) {
      const std::uint64_t key = random() % (2 * ways);
      const bool hits = sets.touch(key), hits_oldest = oldest.touch(key);
      seen |= hits != hits_oldest;
      if (!hits) sets.insert(key);
      if (!hits_oldest) oldest.insert(key);
    }
    return seen;
  };
  EXPECT_TRUE(differ(4));
  EXPECT_TRUE(differ(8));
  EXPECT_FALSE(differ(12));
  EXPECT_FALSE(differ(16));
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
