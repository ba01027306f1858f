#include "uarch/profile_changes.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "uarch/hierarchy.hpp"

namespace vpmu::uarch::test {
namespace {

constexpr std::uint64_t one_kib = 1024, one_mib = 1024 * one_kib;

ProfileChanges changes_of(std::string_view text) {
  ProfileChanges changes;
  const auto refusal = changes.add(text);
  EXPECT_FALSE(refusal) << text << ": " << refusal->what;
  return changes;
}

/// "what; advice" of the list's refusal; "" without one.
std::string refusal_of(std::string_view text, ProfileChanges changes = {}) {
  const ProfileChanges before = changes;
  const auto refusal = changes.add(text);
  if (!refusal) return "";
  EXPECT_EQ(changes, before) << "refused without effect";
  return refusal->what + "; " + refusal->advice;
}

Profile changed(std::string_view text, std::string_view name = "skylake") {
  Profile profile = *find_profile(name);
  const auto refusal = changes_of(text).apply(profile);
  EXPECT_FALSE(refusal) << text << ": " << refusal->what;
  return profile;
}

/// The same for changes that do not fit the profile.
std::string misfit_of(std::string_view text, std::string_view name = "skylake") {
  Profile profile = *find_profile(name);
  const auto refusal = changes_of(text).apply(profile);
  if (!refusal) return "";
  EXPECT_EQ(profile.l3, find_profile(name)->l3) << "refused without effect";
  EXPECT_EQ(profile.latency.dram, find_profile(name)->latency.dram);
  return refusal->what + "; " + refusal->advice;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

TEST(ProfileChanges, HaveOneTextHoweverTheyAreWritten) {
  EXPECT_EQ(changes_of("l3=16M,dram=240").text(), "l3=16M,dram=240");
  EXPECT_EQ(changes_of("dram=240,l3=16384K").text(), "l3=16M,dram=240");
  EXPECT_EQ(changes_of("l3=16777216,dram=0xF0"), changes_of("l3=16m,dram=240"));
  EXPECT_EQ(changes_of("l1d=48k,prefetch-off=0xF").text(), "l1d=48K,prefetch-off=15");
  ProfileChanges both = changes_of("mhz=4000");
  ASSERT_FALSE(both.add("l3=6M"));
  EXPECT_EQ(both.text(), "l3=6M,mhz=4000");
  EXPECT_EQ(both.of(Parameter::mhz), 4000U);
  EXPECT_EQ(both.of(Parameter::dram), std::nullopt);
  EXPECT_TRUE(ProfileChanges{}.empty());
  EXPECT_EQ(ProfileChanges{}.text(), "");
  EXPECT_FALSE(both.empty());
}

TEST(ProfileChanges, OfAllParametersFitIntoATextThatIsTakenAgain) {
  const ProfileChanges all = changes_of(
      "l1d=131072,l2=8388608,l3=134217728,stlb=16384,l2-cycles=100,l3-cycles=300,dram=500,line-ps=20000,mhz=10000,"
      "fill-buffers=16,prefetch-off=15");
  EXPECT_LT(all.text().size(), ProfileChanges::max_text);
  EXPECT_EQ(changes_of(all.text()), all);
  for (std::size_t n = 0; n < parameter_count; ++n)
    EXPECT_EQ(all.of(static_cast<Parameter>(n)).has_value(), static_cast<Parameter>(n) != Parameter::mem_ns) << n;
}

TEST(ProfileChanges, WithUnknownNamesGetTheKnownOnes) {
  const std::string refusal = refusal_of("l4=16M");
  EXPECT_TRUE(has(refusal, "no parameter \"l4\"; give NAME=VALUE of one of: l1d, l2, l3, ")) << refusal;
  EXPECT_TRUE(has(refusal, "mem-ns")) << refusal;
  for (const char* text : {"", ",", "l3=16M,", ",l3=16M", "l3=16M,,dram=200", " l3=16M", "L3=16M", "=5"})
    EXPECT_TRUE(has(refusal_of(text), "no parameter")) << text;
  EXPECT_TRUE(has(refusal_of("x\ny=1"), "\"x?y\"")) << "one line, whatever is given";
  EXPECT_LT(refusal_of(std::string(ProfileChanges::max_text, 'x')).size(), 300U);
  EXPECT_TRUE(has(refusal_of(std::string(ProfileChanges::max_text + 1, 'x')), "513 characters"));
}

TEST(ProfileChanges, NeedANumber) {
  for (const char* text :
       {"l3", "l3=", "l3=M", "l3=16G", "l3=16 M", "l3=-1", "l3=1.5M", "l3=0x10M", "l3=16MB", "l3=99999999999999999999",
        "l3=18446744073709551615M", "dram=24K", "dram=+24", "dram=0x", "dram=2 4", "dram==4"})
    EXPECT_TRUE(has(refusal_of(text), "has no value; give ")) << text << ": " << refusal_of(text);
  EXPECT_EQ(refusal_of("l3=big"), "\"l3=big\" has no value; give l3=a number of bytes, or of K or M, 64K to 128M");
  EXPECT_EQ(refusal_of("dram="), "\"dram=\" has no value; give dram=a whole number, 7 to 500");
}

TEST(ProfileChanges, AreWithinBounds) {
  EXPECT_EQ(refusal_of("l3=1000000M"), "\"l3=1000000M\" is out of range; give 64K to 128M");
  for (const char* text :
       {"l1d=0",     "l1d=129K",       "l2=1K",           "l2=9M",          "l3=63K",        "l3=129M",
        "stlb=15",   "stlb=16385",     "l2-cycles=4",     "l2-cycles=101",  "l3-cycles=301", "dram=6",
        "dram=501",  "mem-ns=0",       "mem-ns=1001",     "line-ps=99",     "line-ps=20001", "mhz=99",
        "mhz=10001", "fill-buffers=0", "fill-buffers=17", "prefetch-off=16"})
    EXPECT_TRUE(has(refusal_of(text), "is out of range; give ")) << text << ": " << refusal_of(text);
}

TEST(ProfileChanges, AreGivenOnce) {
  EXPECT_EQ(refusal_of("l3=16M,l3=8M"), "l3 is set twice; give it once");
  EXPECT_EQ(refusal_of("l3=16M", changes_of("l3=16M")), "l3 is set twice; give it once");
  EXPECT_EQ(refusal_of("mem-ns=60", changes_of("dram=200")),
            "dram and mem-ns both say how long memory takes; give one of them");
}

// The model's own sizes are its own shapes: setting them changes nothing.
TEST(ProfileChanges, ToTheModelsOwnSizesChangeNothing) {
  for (const Profile& p : all_profiles()) {
    const auto text = [&p](const char* name, const Shape& shape) {
      return std::string{name} + "=" + std::to_string(shape.entries() * line_bytes);
    };
    const Profile same =
        changed(text("l1d", p.l1d) + "," + text("l2", p.l2) + "," + text("l3", p.l3) +
                    ",stlb=" + std::to_string(p.stlb.shared.entries()) + ",dram=" + std::to_string(p.latency.dram),
                p.name);
    EXPECT_EQ(same.l1d, p.l1d) << p.name;
    EXPECT_EQ(same.l2, p.l2) << p.name;
    EXPECT_EQ(same.l3, p.l3) << p.name;
    EXPECT_EQ(same.stlb.shared, p.stlb.shared) << p.name;
    EXPECT_EQ(same.latency.dram, p.latency.dram) << p.name;
    EXPECT_EQ(same.channel, p.channel) << p.name;
  }
}

TEST(ProfileChanges, OfSizesKeepTheWaysWhereTheyCan) {
  EXPECT_EQ(changed("l3=16M").l3, (Shape{.sets = 16384, .ways = 16}));
  EXPECT_EQ(changed("l3=6M").l3, (Shape{.sets = 8192, .ways = 12}));
  EXPECT_EQ(changed("l3=35M").l3, (Shape{.sets = 16384, .ways = 35})) << "and 35 is 5 times 7";
  EXPECT_EQ(changed("l3=20M").l3, (Shape{.sets = 16384, .ways = 20}));
  EXPECT_EQ(changed("l3=128M").l3, (Shape{.sets = 131072, .ways = 16}));
  EXPECT_EQ(changed("l2=512K").l2, (Shape{.sets = 2048, .ways = 4}));
  EXPECT_EQ(changed("l1d=48K").l1d, (Shape{.sets = 64, .ways = 12})) << "Repeats needs 64 sets";
  EXPECT_EQ(changed("stlb=2048").stlb.shared, (Shape{.sets = 128, .ways = 16}));
}

TEST(ProfileChanges, OfSizesThatNoCacheHasNameTheNearest) {
  EXPECT_EQ(misfit_of("l3=24704K"),
            "l3=24704K: a power of two of sets, of 64 ways at most, has no such size; give l3=24M or l3=25088K");
  EXPECT_EQ(misfit_of("l3=65537"),
            "l3=65537: a power of two of sets, of 64 ways at most, has no such size; give l3=64K or l3=66K");
  EXPECT_EQ(misfit_of("stlb=1537"),
            "stlb=1537: a power of two of sets, of 64 ways at most, has no such size; give stlb=1536 or stlb=1568");
  EXPECT_EQ(misfit_of("l1d=33K"), "l1d=33K is no multiple of a way's 4K; give l1d=36K");
}

TEST(ProfileChanges, OfSizesAgreeWithTheOtherLevels) {
  EXPECT_EQ(
      misfit_of("l3=128K"),
      "an L3 of 128K cannot hold the L2's 256K, as one that is inclusive does; give a larger l3, or a smaller l2");
  EXPECT_EQ(misfit_of("l3=256K"), "") << "no smaller";
  EXPECT_EQ(misfit_of("l3=128K,l2=128K"), "");
  EXPECT_EQ(misfit_of("l3=512K", "skylake-sp"), "") << "a victim cache need not hold what the L2 has";
  EXPECT_EQ(misfit_of("l1d=64K,l2=32K"),
            "an L2 of 32K is smaller than the L1D of 64K; give a larger l2, or a smaller l1d");
  // Where cores share lines, the L2's sets follow the ways of both.
  EXPECT_EQ(misfit_of("l1d=128K,l2=496K"), "") << "31 and 32 ways";
  EXPECT_EQ(misfit_of("l1d=128K,l2=592K"),
            "an L2 of 37 ways and an L1D of 32 have more than 64 together; give an l2 that is a power of two, or a "
            "smaller l1d");
}

TEST(ProfileChanges, OfTimesBecomeLongerFromLevelToLevel) {
  EXPECT_EQ(misfit_of("dram=40"),
            "loads would take 4 cycles from the L1D, 12 from the L2, 44 from the L3 and 40 from memory; give times "
            "that become longer from level to level, at most 500");
  for (const char* text : {"l2-cycles=44", "l3-cycles=12", "dram=44", "mem-ns=1,mhz=100", "mem-ns=1000", "mhz=10000",
                           "l3-cycles=300,mem-ns=81"})
    EXPECT_TRUE(has(misfit_of(text), "loads would take")) << text;
  EXPECT_EQ(misfit_of("dram=45"), "");
  EXPECT_EQ(misfit_of("dram=500"), "");
}

TEST(ProfileChanges, OfMemoryAreCyclesOfTheCore) {
  EXPECT_EQ(changed("dram=240").latency.dram, 240);
  EXPECT_EQ(changed("mem-ns=80").latency.dram, 44 + 200) << "80 ns at 2500 MHz";
  EXPECT_EQ(changed("mem-ns=80,mhz=4000").latency.dram, 44 + 320);
  EXPECT_EQ(changed("mhz=4000").latency.dram, 44 + 204);
  EXPECT_EQ(changed("l3-cycles=54").latency.dram, 54 + 127) << "memory is behind the L3";
  EXPECT_EQ(changed("dram=240,mhz=4000,l3-cycles=54").latency.dram, 240) << "in all";
  EXPECT_EQ(changed("mhz=5000").channel, 9) << "1900 ps";
  EXPECT_EQ(changed("line-ps=8000").channel, 20);
  EXPECT_EQ(changed("l2-cycles=14").latency.l2, 14);
}

TEST(ProfileChanges, OfBuffersAndPrefetchers) {
  EXPECT_EQ(changed("fill-buffers=12").fill_buffers, 12);
  EXPECT_EQ(changed("prefetch-off=0xf").prefetchers_off, 15);
}

DataAccess word_at(std::uint64_t address) {
  return {.linear = address, .physical = address, .bytes = 8, .page = PageSize::huge};
}

/// Where loads of all lines of so many bytes come from, when they came before: the level of most.
std::uint64_t dram_loads(const Profile& profile, std::uint64_t bytes) {
  Hierarchy h{profile};
  std::uint64_t from_memory = 0;
  for (unsigned round = 0; round < 2; ++round) {
    from_memory = 0;
    for (std::uint64_t address = 0; address < bytes; address += line_bytes) {
      from_memory += h.load(word_at(address)).level == HitLevel::dram ? 1 : 0;
      h.advance(1000);
    }
  }
  return from_memory;
}

TEST(ProfileChanges, OfTheL3ChangeWhatHits) {
  const std::uint64_t bytes = 4 * one_mib, lines = bytes / line_bytes;
  EXPECT_EQ(dram_loads(*find_profile("skylake"), bytes), 0U) << "in 8 MiB";
  EXPECT_EQ(dram_loads(changed("l3=1M"), bytes), lines) << "least-recently-used: nothing that comes around is left";
  EXPECT_EQ(dram_loads(changed("l3=1M"), one_mib / 2), 0U);
  EXPECT_EQ(dram_loads(changed("l3=64M"), 32 * one_mib), 0U);
  EXPECT_GT(dram_loads(*find_profile("skylake"), 32 * one_mib), 0U);
}

TEST(ProfileChanges, OfTheL1dAndL2ChangeWhatHits) {
  const auto level_of_second = [](const Profile& profile, std::uint64_t bytes) {
    Hierarchy h{profile};
    for (std::uint64_t address = 0; address < bytes; address += line_bytes) {
      (void)h.load(word_at(address));
      h.advance(1000);
    }
    return h.load(word_at(0)).level;
  };
  EXPECT_EQ(level_of_second(*find_profile("skylake"), 40 * one_kib), HitLevel::l2);
  EXPECT_EQ(level_of_second(changed("l1d=48K"), 40 * one_kib), HitLevel::l1);
  EXPECT_EQ(level_of_second(*find_profile("skylake"), one_mib), HitLevel::l3);
  EXPECT_EQ(level_of_second(changed("l2=2M"), one_mib), HitLevel::l2);
}

// It says so before anyone asks, and the guest cannot turn it on.
TEST(ProfileChanges, OfPrefetchersHoldWhateverTheGuestSays) {
  const auto second_line = [](const Profile& profile, bool guest_turns_on) {
    Hierarchy h{profile};
    h.keep_time_outside();
    if (guest_turns_on) h.turn_off(0);
    for (std::uint64_t n = 0; n < 8; ++n) {
      (void)h.load(word_at(n * line_bytes));
      h.advance(1000);
    }
    return h.load(word_at(8 * line_bytes)).level;
  };
  const Profile off = changed("prefetch-off=15");
  EXPECT_NE(second_line(*find_profile("skylake"), false), HitLevel::dram);
  EXPECT_EQ(second_line(off, false), HitLevel::dram);
  EXPECT_EQ(second_line(off, true), HitLevel::dram);
}

TEST(ProfileChanges, OfAHierarchyOutliveTheProfile) {
  Hierarchy h = [] {
    const Profile profile = changed("dram=321");
    return Hierarchy{profile};
  }();
  (void)h.load(word_at(0));
  EXPECT_EQ(h.load(word_at(line_bytes)).latency, 321) << "without a page walk";
}

}  // namespace
}  // namespace vpmu::uarch::test
