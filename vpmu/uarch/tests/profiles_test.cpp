#include "uarch/profiles.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "vpmu/generation.hpp"

#include "uarch/hierarchy.hpp"

namespace vpmu::uarch::test {
namespace {

TEST(Profiles, EveryGenerationHasOne) {
  ASSERT_FALSE(all_generations().empty());
  for (const GenerationDesc* const generation : all_generations())
    EXPECT_NE(find_profile(generation->name), nullptr) << generation->name;
}

// Repeats depends on this.
TEST(Profiles, L1SetsAreToldByTheAddressInAPage) {
  for (const Profile& p : all_profiles())
    for (const Shape& l1 : {p.l1i, p.l1d}) {
      EXPECT_GT(l1.sets, 0U) << p.name;
      EXPECT_EQ(l1.sets % Repeats::places, 0U) << p.name;
    }
}

TEST(Profiles, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const Profile& p : all_profiles()) EXPECT_TRUE(names.insert(p.name).second) << p.name;
  EXPECT_EQ(find_profile("i386"), nullptr);
}

TEST(Profiles, LevelsGrowAndSlowDown) {
  for (const Profile& p : all_profiles()) {
    EXPECT_LT(p.l1d.entries(), p.l2.entries()) << p.name;
    EXPECT_LT(p.l2.entries(), p.l3.entries()) << p.name;
    EXPECT_LT(p.latency.l1, p.latency.l2) << p.name;
    EXPECT_LT(p.latency.l2, p.latency.l3) << p.name;
    EXPECT_LT(p.latency.l3, p.latency.dram) << p.name;
    EXPECT_GE(p.latency.l1, 4) << p.name << ": SDM 3B 18.8.1.2 has no load under 4 cycles";
    EXPECT_LE(p.branches.return_stack, 32) << p.name;
    EXPECT_LE(p.fill_buffers, 16) << p.name;
  }
}

// Optimization manual: 32 KiB of 8 ways, 256 KiB of 4 ways, 8 MiB of 16 ways.
TEST(Profiles, SkylakeIsTheClients) {
  const Profile& p = *find_profile("skylake");
  EXPECT_EQ(p.l1d, (Shape{.sets = 64, .ways = 8}));
  EXPECT_EQ(p.l2, (Shape{.sets = 1024, .ways = 4}));
  EXPECT_EQ(p.l3, (Shape{.sets = 8192, .ways = 16}));
  EXPECT_EQ(p.stlb.shared.entries(), 1536U);
  EXPECT_EQ(p.last_level, LastLevel::inclusive);
  EXPECT_EQ(find_profile("skylake-sp")->last_level, LastLevel::victim);
}

}  // namespace
}  // namespace vpmu::uarch::test
