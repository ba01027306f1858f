// Events of TLBs by the size of the page, and of lines of code: each by count() and by the retirements that complete()
// describes.
#include <gtest/gtest.h>

#include <array>

#include "accesses.hpp"
#include "uarch/processor_model.hpp"
#include "uarch/profiles.hpp"

namespace vpmu::uarch::test {
namespace {

constexpr std::uint64_t small = 4096, large = 2ULL << 20, huge = 1ULL << 30;

/// Counts what retirements say of the events, beside the model's own count.
class PageEvents : public testing::Test {
 protected:
  void access(std::uint64_t at, std::uint64_t page_bytes, bool store) {
    SeenAccess a = store ? store_of(at) : load_of(at);
    a.page_bytes = page_bytes;
    model_.begin_instruction();
    model_.accessed(a, now_++);
    model_.retired(!store, store);
    Retirement r{.has_load = !store, .has_store = store};
    model_.complete(r);
    add(r);
  }
  void fetch(std::uint64_t at, std::uint64_t page_bytes) {
    model_.begin_instruction();
    model_.fetched({.linear = at, .physical = at, .page_bytes = page_bytes});
    Retirement r;
    model_.complete(r);
    add(r);
  }
  /// The event's count, which is the same both ways.
  std::uint64_t count(Counts counts) {
    EXPECT_EQ(model_.count(counts), told_[static_cast<unsigned>(counts)]) << static_cast<unsigned>(counts);
    return model_.count(counts);
  }

  ProcessorModel model_{*find_profile("haswell")};

 private:
  void add(const Retirement& r) {
    for (unsigned i = 0; i < counts_kinds; ++i) told_[i] += describe(static_cast<Counts>(i)).of(r);
  }
  std::array<std::uint64_t, counts_kinds> told_{};
  std::uint64_t now_{};
};

TEST_F(PageEvents, WalksAreToldByThePagesSize) {
  for (unsigned n = 0; n < 5; ++n) access(0x10'0000'0000 + n * small, small, false);
  for (unsigned n = 0; n < 3; ++n) access(0x20'0000'0000 + n * large, large, false);
  for (unsigned n = 0; n < 2; ++n) access(0x30'0000'0000 + n * huge, huge, false);
  for (unsigned n = 0; n < 4; ++n) access(0x40'0000'0000 + n * large, large, true);
  EXPECT_EQ(count(Counts::stlb_miss_loads_small), 5U);
  EXPECT_EQ(count(Counts::stlb_miss_loads_large), 3U);
  EXPECT_EQ(count(Counts::stlb_miss_loads_huge), 2U);
  EXPECT_EQ(count(Counts::stlb_miss_loads), 10U) << "the whole is the sum of its parts";
  EXPECT_EQ(count(Counts::stlb_miss_stores_large), 4U);
  EXPECT_EQ(count(Counts::stlb_miss_stores_small), 0U);
  EXPECT_EQ(count(Counts::dtlb_walks_large), 7U);
  EXPECT_EQ(count(Counts::dtlb_walks), 14U);
  // Two parts as a union: WALK_COMPLETED_4K and WALK_COMPLETED_2M_4M, and one that has both.
  PlanEntry both{.counter = CounterId::gp(0), .counts = Counts::several};
  both.kinds.add(Counts::stlb_miss_loads_small);
  both.kinds.add(Counts::stlb_miss_loads_large);
  EXPECT_EQ(model_.count(both), 8U);
  both.kinds.add(Counts::stlb_miss_loads);
  EXPECT_EQ(model_.count(both), 10U) << "nothing twice";
}

TEST_F(PageEvents, HitsOfTheSecondTlbAreToldByThePagesSize) {
  constexpr unsigned pages = 200;  // more than the first TLB has, fewer than the second
  for (unsigned turn = 0; turn < 2; ++turn)
    for (unsigned n = 0; n < pages; ++n) access(0x10'0000'0000 + n * small, small, turn == 0);
  EXPECT_EQ(count(Counts::stlb_miss_stores_small), pages);
  EXPECT_GT(count(Counts::dtlb_stlb_hit_loads_small), pages / 2);
  EXPECT_EQ(count(Counts::dtlb_stlb_hit_loads_large), 0U);
  EXPECT_EQ(count(Counts::dtlb_stlb_hit_loads), count(Counts::dtlb_stlb_hit_loads_small));
  EXPECT_EQ(count(Counts::dtlb_stlb_hits), count(Counts::dtlb_stlb_hit_loads));
}

TEST_F(PageEvents, CodeIsToldByThePagesSizeToo) {
  for (unsigned n = 0; n < 3; ++n) fetch(0x10'0000'0000 + n * small, small);
  for (unsigned n = 0; n < 2; ++n) fetch(0x20'0000'0000 + n * large, large);
  fetch(0x30'0000'0000, huge);
  EXPECT_EQ(count(Counts::itlb_walks_small), 3U);
  EXPECT_EQ(count(Counts::itlb_walks_large), 2U);
  EXPECT_EQ(count(Counts::itlb_walks_huge), 1U);
  EXPECT_EQ(count(Counts::itlb_walks), 6U);
  EXPECT_EQ(count(Counts::itlb_any_misses), 6U);
}

// Nehalem has no decoded micro-op cache: each line that is fetched is read from the L1I.
TEST(CodeEvents, ReadsOfTheL1iAreHitsAndMisses) {
  ProcessorModel nehalem{*find_profile("nehalem")};
  for (unsigned turn = 0; turn < 3; ++turn)
    for (unsigned n = 0; n < 4; ++n)
      nehalem.fetched({.linear = 0x9000 + n * line_bytes, .physical = 0x9000 + n * line_bytes, .page_bytes = small});
  EXPECT_EQ(nehalem.count(Counts::l1i_misses), 4U);
  EXPECT_EQ(nehalem.count(Counts::l1i_hits), 8U);
  EXPECT_EQ(nehalem.count(Counts::l1i_reads), 12U);
  ProcessorModel skylake{*find_profile("skylake")};
  for (unsigned turn = 0; turn < 3; ++turn)
    skylake.fetched({.linear = 0x9000, .physical = 0x9000, .page_bytes = small});
  EXPECT_EQ(skylake.count(Counts::l1i_misses), 1U);
  EXPECT_EQ(skylake.count(Counts::l1i_hits), 0U) << "the micro-ops are there";
}

}  // namespace
}  // namespace vpmu::uarch::test
