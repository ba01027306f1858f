#include "uarch/tlb.hpp"

#include <gtest/gtest.h>

namespace vpmu::uarch::test {
namespace {

const Profile& profile() { return *find_profile("skylake"); }
constexpr std::uint64_t kib4 = 4096, mib2 = 2ULL << 20, gib = 1ULL << 30;

TlbResult second_round(Tlb& tlb, std::uint64_t pages, std::uint64_t bytes, PageSize size) {
  for (std::uint64_t p = 0; p < pages; ++p) EXPECT_EQ(tlb.look_up(p * bytes, size), TlbResult::walk) << p;
  const TlbResult first = tlb.look_up(0, size);
  for (std::uint64_t p = 1; p < pages; ++p) EXPECT_EQ(tlb.look_up(p * bytes + bytes - 1, size), first) << p;
  return first;
}

// 64 entries in the first level and 1536 in the second.
TEST(Tlb, HoldsAsManySmallPagesAsItHasEntries) {
  for (const auto& [pages, expected] : {std::pair{64U, TlbResult::hit}, std::pair{65U * 4, TlbResult::stlb_hit},
                                        std::pair{1536U, TlbResult::stlb_hit}, std::pair{2048U, TlbResult::walk}}) {
    SecondLevel second{profile().stlb};
    Tlb tlb{profile().dtlb, second};
    EXPECT_EQ(second_round(tlb, pages, kib4, PageSize::small), expected) << pages;
  }
}

TEST(Tlb, HasTablesForLargeAndHugePages) {
  SecondLevel second{profile().stlb};
  Tlb tlb{profile().dtlb, second};
  EXPECT_EQ(second_round(tlb, 32, mib2, PageSize::large), TlbResult::hit);
  EXPECT_EQ(second_round(tlb, 4, gib, PageSize::huge), TlbResult::hit);
}

// Nehalem's second level has 4 KiB pages only, and nothing at all has 1 GiB pages.
TEST(Tlb, WalksForPagesWithoutATable) {
  const Profile& old = *find_profile("nehalem");
  SecondLevel second{old.stlb};
  Tlb tlb{old.dtlb, second};
  EXPECT_EQ(second_round(tlb, 2, gib, PageSize::huge), TlbResult::walk);
  EXPECT_EQ(second_round(tlb, 64, mib2, PageSize::large), TlbResult::walk) << "32 entries";
}

// A small and a large page with the same page number are different entries.
TEST(Tlb, TellsSizesApartInTheSecondLevel) {
  SecondLevel second{profile().stlb};
  EXPECT_FALSE(second.look_up(5, PageSize::small));
  EXPECT_FALSE(second.look_up(5, PageSize::large));
  EXPECT_TRUE(second.look_up(5, PageSize::small));
  EXPECT_TRUE(second.look_up(5, PageSize::large));
}

TEST(Tlb, CodeFindsWhatDataBroughtIntoTheSecondLevel) {
  SecondLevel second{profile().stlb};
  Tlb data{profile().dtlb, second};
  Tlb code{profile().itlb, second};
  EXPECT_EQ(data.look_up(kib4, PageSize::small), TlbResult::walk);
  EXPECT_EQ(code.look_up(kib4, PageSize::small), TlbResult::stlb_hit);
  EXPECT_EQ(code.look_up(kib4, PageSize::small), TlbResult::hit);
}

TEST(Tlb, TellsPagesApartByTags) {
  SecondLevel second{profile().stlb};
  Tlb tlb{profile().dtlb, second};
  constexpr std::uint64_t other = 1ULL << 20, global = 1ULL << 21;
  tlb.tag_pages(0, global);
  for (const bool is_global : {false, true}) EXPECT_EQ(tlb.look_up(kib4, PageSize::small, is_global), TlbResult::walk);
  tlb.tag_pages(other, global);
  EXPECT_EQ(tlb.look_up(kib4, PageSize::small, true), TlbResult::hit);
  EXPECT_EQ(tlb.look_up(kib4, PageSize::small), TlbResult::walk);
  tlb.tag_pages(0, global);
  EXPECT_EQ(tlb.look_up(kib4, PageSize::small), TlbResult::hit);
}

TEST(Tlb, ForgetsWhatHasAnAddress) {
  SecondLevel second{profile().stlb};
  Tlb tlb{profile().dtlb, second};
  tlb.tag_pages(0, 1ULL << 20);
  for (const bool global : {false, true})
    for (const auto& [size, bytes] :
         {std::pair{PageSize::small, kib4}, std::pair{PageSize::large, mib2}, std::pair{PageSize::huge, gib}}) {
      EXPECT_EQ(tlb.look_up(3 * gib, size, global), TlbResult::walk);
      EXPECT_EQ(tlb.look_up(4 * gib + bytes, size, global), TlbResult::walk);
      tlb.forget(3 * gib + bytes - 1);
      EXPECT_EQ(tlb.look_up(3 * gib, size, global), TlbResult::walk) << bytes;
      EXPECT_NE(tlb.look_up(4 * gib + bytes, size, global), TlbResult::walk) << "another page";
    }
}

TEST(Tlb, SizesOfPages) {
  EXPECT_EQ(page_size_of(kib4), PageSize::small);
  EXPECT_EQ(page_size_of(mib2), PageSize::large);
  EXPECT_EQ(page_size_of(2 * mib2), PageSize::large);
  EXPECT_EQ(page_size_of(gib), PageSize::huge);
}

}  // namespace
}  // namespace vpmu::uarch::test
