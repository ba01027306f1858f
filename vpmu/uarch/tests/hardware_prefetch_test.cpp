// Hardware prefetchers, page walks and the L3's replacement where someone else keeps the time. 248966, chapter 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "uarch/hierarchy.hpp"
#include "uarch/prefetchers.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::uarch::test {
namespace {

namespace off = reg::misc_feature_control;

constexpr std::uint64_t lines_of_page = 64;

std::vector<std::uint64_t> lines_of(const PrefetchedLines& lines) { return {lines.all().begin(), lines.all().end()}; }
using Lines = std::vector<std::uint64_t>;

TEST(HardwarePrefetch, AStreamRunsAheadOfItsLoads) {
  for (const int direction : {1, -1}) {
    Prefetchers prefetchers;
    prefetchers.turn_off(off::L2_ADJACENT_LINE::mask);
    const auto line = [direction](int n) {
      return 32 + static_cast<std::uint64_t>(direction) * static_cast<std::uint64_t>(n);
    };
    EXPECT_EQ(lines_of(prefetchers.missed_l1(line(0))), Lines{}) << "one line is no stream";
    EXPECT_EQ(lines_of(prefetchers.missed_l1(line(1))), (Lines{line(2), line(3), line(4), line(5)}));
    EXPECT_EQ(lines_of(prefetchers.missed_l1(line(2))), (Lines{line(6), line(7), line(8), line(9)}));
    // At most 20 ahead, and not out of the page.
    int furthest = 9;
    for (int n = 3; n < 30; ++n) {
      const PrefetchedLines wanted = prefetchers.missed_l1(line(n));
      for (const std::uint64_t next : wanted.all()) {
        EXPECT_EQ(next, line(++furthest));
        EXPECT_LE(furthest, n + 20);
        EXPECT_EQ(next / lines_of_page, 0U);
      }
    }
    EXPECT_EQ(furthest, direction > 0 ? 31 : 32);
  }
}

TEST(HardwarePrefetch, EachIsTurnedOffByItsBit) {
  const auto asked = [](std::uint8_t which) {
    Prefetchers prefetchers;
    prefetchers.turn_off(which);
    prefetchers.missed_l1(4);
    return lines_of(prefetchers.missed_l1(6));
  };
  EXPECT_EQ(asked(0), (Lines{7, 7, 8, 9, 10}));
  EXPECT_EQ(asked(off::L2_STREAMER::mask), Lines{7});
  EXPECT_EQ(asked(off::L2_ADJACENT_LINE::mask), (Lines{7, 8, 9, 10}));
  EXPECT_EQ(asked(off::writable), Lines{});
  const auto next = [](std::uint8_t which) {
    Prefetchers prefetchers;
    prefetchers.turn_off(which);
    prefetchers.filled(4, 0);
    EXPECT_FALSE(prefetchers.accessed(4, 8));
    EXPECT_FALSE(prefetchers.accessed(4, 16));
    EXPECT_TRUE(prefetchers.watches(4));
    const auto line = prefetchers.accessed(4, 24);
    EXPECT_FALSE(prefetchers.watches(4));
    return line;
  };
  EXPECT_EQ(next(0), 5U);
  EXPECT_EQ(next(off::DCU_NEXT_LINE::mask), std::nullopt);
}

TEST(HardwarePrefetch, TheNextLineIsBehindOrBefore) {
  const auto next = [](std::uint64_t line, std::vector<unsigned> offsets) {
    Prefetchers prefetchers;
    prefetchers.filled(line, offsets[0]);
    std::optional<std::uint64_t> found;
    for (std::size_t n = 1; n < offsets.size(); ++n) found = prefetchers.accessed(line, offsets[n]);
    return found;
  };
  EXPECT_EQ(next(10, {0, 16, 32, 48}), 11U);
  EXPECT_EQ(next(10, {56, 48, 40, 32}), 9U);
  EXPECT_EQ(next(10, {0, 32}), std::nullopt) << "two loads of a line are too few";
  EXPECT_EQ(next(63, {0, 16, 32, 48}), std::nullopt) << "it stays in its page";
}

/// Loads at these addresses, one after the other, of a core whose time someone else keeps.
class Timed {
 public:
  explicit Timed(const Profile& profile, std::uint8_t off = 0) : core_{profile} {
    core_.keep_time_outside();
    core_.turn_off(off);
  }
  DataResult load(std::uint64_t address, PageSize page = PageSize::small) {
    const DataResult result = core_.load({.linear = address, .physical = address, .bytes = 8, .page = page});
    core_.advance(1000);  // what began may have begun as late as that
    core_.advance(1000);
    return result;
  }
  Hierarchy& core() { return core_; }

 private:
  Hierarchy core_;
};

TEST(HardwarePrefetch, AStreamFindsItsLinesInTheL2) {
  for (const Profile& profile : all_profiles()) {
    unsigned from_memory = 0, from_l2 = 0;
    Timed with{profile}, without{profile, off::writable};
    for (std::uint64_t line = 0; line < lines_of_page; ++line) {
      const HitLevel level = with.load(line * line_bytes).level;
      from_memory += level == HitLevel::dram ? 1 : 0;
      from_l2 += level == HitLevel::l2 ? 1 : 0;
      EXPECT_EQ(without.load(line * line_bytes).level, HitLevel::dram) << profile.name;
    }
    EXPECT_EQ(from_memory, 2U) << profile.name;
    EXPECT_EQ(from_l2, lines_of_page - 2) << profile.name;
  }
}

TEST(HardwarePrefetch, TellsWhatBeginsAndWhatIsWaitedFor) {
  Hierarchy core{*find_profile("skylake")};
  core.keep_time_outside();
  const auto load = [&core](std::uint64_t line) {
    return core.load({.linear = line * line_bytes, .physical = line * line_bytes, .bytes = 8});
  };
  const Transfers first = load(0).transfers;
  EXPECT_EQ(first.count(), 1U);
  EXPECT_EQ(first.from(0), Transfers::memory);
  EXPECT_EQ(load(0).transfers.waits_for(), first.first()) << "it is on its way";
  const Transfers second = load(1).transfers;
  EXPECT_EQ(second.count(), 5U) << "its own, and four ahead";
  EXPECT_EQ(second.count_from(Transfers::memory), 5U);
  EXPECT_EQ(second.first(), Transfers::name(2));
  const DataResult third = load(2);
  EXPECT_EQ(third.transfers.waits_for(), second.first() + 1);
  EXPECT_EQ(third.level, HitLevel::dram);
  const Latencies& latency = core.profile().latency;
  EXPECT_EQ(third.latency - third.waits, latency.l2);
  core.advance(1);
  core.advance(latency.dram);
  EXPECT_FALSE(load(2).transfers.any()) << "all has come";
  EXPECT_EQ(load(3).level, HitLevel::l2);
}

// SDM 3A 4.10.3: entries of paging structures come through the caches, and the upper ones are cached for themselves.
TEST(HardwarePrefetch, APageWalkLoadsItsEntries) {
  Timed timed{*find_profile("skylake"), off::writable};
  const Latencies& latency = find_profile("skylake")->latency;
  const auto walk = [&](std::uint64_t page, std::uint64_t line, PageSize size = PageSize::small) {
    const DataResult found = timed.load(page * page_size + line * line_bytes, size);
    EXPECT_EQ(found.tlb, TlbResult::walk);
    EXPECT_EQ(found.level, HitLevel::dram);
    return found.latency - latency.dram;
  };
  EXPECT_EQ(walk(0, 0), latency.stlb_hit + 3 * latency.dram) << "no level of the tables is in a cache";
  EXPECT_EQ(walk(1, 1), latency.stlb_hit + latency.l1) << "the same line of the same page table";
  EXPECT_EQ(walk(8, 2), latency.stlb_hit + latency.dram) << "the next line of it";
  EXPECT_EQ(walk(512, 3), latency.stlb_hit + latency.l1 + latency.dram) << "the next directory entry, and its table";
  EXPECT_EQ(walk(1024, 4, PageSize::large), latency.stlb_hit + latency.l1);
  timed.core().flush_tlbs({});
  EXPECT_EQ(timed.load(0).latency, latency.l1 + latency.stlb_hit + 3 * latency.l1) << "the tables are in the L1";
}

/// What the core has caused of these.
template <class... Events>
std::uint64_t caused(Timed& timed, Events... events) {
  return CacheEvents::of(events...).sum(timed.core().cache_events());
}

std::uint64_t requests(Timed& timed, OffcoreRequest request) {
  std::uint64_t n = 0;
  for (unsigned supplier = 0; supplier < offcore_supplier_count; ++supplier)
    n += timed.core().offcore()[offcore_cell(request, static_cast<OffcoreSupplier>(supplier))];
  return n;
}

// What the streamer asks for is a request of its own kind, to the L2 and beyond it.
TEST(HardwarePrefetch, RequestsAreToldByWhoMakesThem) {
  using enum CacheEvent;
  for (const Profile& profile : all_profiles()) {
    Timed timed{profile, off::L2_ADJACENT_LINE::mask};
    for (std::uint64_t line = 0; line < lines_of_page; ++line) timed.load(line * line_bytes);
    EXPECT_EQ(caused(timed, l2_data_read_miss), 2U) << profile.name << ": then the stream is known";
    EXPECT_EQ(caused(timed, l2_data_read_hit), lines_of_page - 2) << profile.name;
    EXPECT_EQ(caused(timed, l2_prefetch_miss), lines_of_page - 2) << profile.name;
    EXPECT_EQ(caused(timed, l2_rfo_hit, l2_rfo_miss, l2_code_read_hit, l2_code_read_miss), 0U) << profile.name;
    const std::uint64_t entries = caused(timed, data_walk_memory);
    EXPECT_EQ(entries, 3U) << profile.name;
    EXPECT_EQ(requests(timed, OffcoreRequest::prefetch_data_read), lines_of_page - 2) << profile.name;
    EXPECT_EQ(requests(timed, OffcoreRequest::demand_data_read), 2 + entries) << profile.name;
    // Once more from another page table: all lines are in the L2, and the streamer finds them there.
    for (std::uint64_t line = 0; line < 4096; ++line) timed.load((1 << 20) + line * line_bytes);
    EXPECT_GT(caused(timed, l2_prefetch_miss), 4096U - 64 * 2 - 100) << profile.name;
  }
}

TEST(HardwarePrefetch, LoadsThatMeetTheL1dsPrefetchAreTold) {
  using enum CacheEvent;
  Timed timed{*find_profile("haswell"), off::L2_STREAMER::mask | off::L2_ADJACENT_LINE::mask};
  Hierarchy& core = timed.core();
  const auto load = [&core](std::uint64_t at) {
    return core.load({.linear = at, .physical = at, .bytes = 8}).met_prefetch;
  };
  for (std::uint64_t at = 0; at < line_bytes; at += 16) EXPECT_EQ(load(at), Prefetched::no);
  EXPECT_EQ(caused(timed, l1d_prefetch_miss), 1U);
  EXPECT_EQ(caused(timed, l2_data_read_miss), 2U) << "of the load, and of the prefetch that the fourth load made";
  EXPECT_EQ(load(line_bytes), Prefetched::by_hardware);
  core.advance(1);
  core.advance(1000);
  EXPECT_EQ(load(line_bytes + 8), Prefetched::no) << "the line has come";
}

TEST(HardwarePrefetch, EntriesOfPageWalksAreToldByWhereTheyWere) {
  using enum CacheEvent;
  Timed timed{*find_profile("skylake"), off::writable};
  timed.load(0);
  EXPECT_EQ(caused(timed, data_walk_memory), 3U);
  timed.load(page_size);
  EXPECT_EQ(caused(timed, data_walk_l1d), 1U);
  const FetchResult fetched = timed.core().fetch(8 * page_size, 8 * page_size, PageSize::small);
  EXPECT_EQ(fetched.walk, find_profile("skylake")->latency.stlb_hit + find_profile("skylake")->latency.dram);
  EXPECT_EQ(caused(timed, code_walk_memory), 1U);
  EXPECT_EQ(caused(timed, code_walk_l1d, code_walk_l2, code_walk_l3), 0U);
  EXPECT_EQ(caused(timed, data_walk_memory, data_walk_l1d), 4U);
  Hierarchy untimed{*find_profile("skylake")};
  EXPECT_EQ(untimed.load({.linear = 0, .physical = 0, .bytes = 8}).tlb, TlbResult::walk);
  EXPECT_EQ(CacheEvents::of(data_walk_l1d, data_walk_l2, data_walk_l3, data_walk_memory).sum(untimed.cache_events()),
            0U)
      << "without time a walk is no loads";
}

TEST(HardwarePrefetch, NoneWorksWithoutTime) {
  Hierarchy core{*find_profile("skylake")};
  for (std::uint64_t line = 0; line < lines_of_page; ++line) {
    EXPECT_EQ(core.load({.linear = line * line_bytes, .physical = line * line_bytes, .bytes = 8}).level,
              HitLevel::dram);
    core.advance(1000);
  }
}

// Twice as many keys as fit, again and again: least-recently-used replacement finds none.
TEST(HardwarePrefetch, ALastLevelThatAdaptsKeepsWhatItCan) {
  constexpr std::uint64_t sets = 256, ways = 16, keys = 2 * sets * ways;
  for (const bool adapts : {false, true}) {
    RecencySets cache{{.sets = sets, .ways = ways}};
    cache.adapt(adapts);
    std::uint64_t hits = 0;
    for (unsigned round = 0; round < 20; ++round)
      for (std::uint64_t key = 0; key < keys; ++key) {
        const bool hit = cache.touch(key);
        if (!hit) cache.insert(key);
        hits += hit && round >= 10 ? 1 : 0;
      }
    if (adapts)
      EXPECT_GT(hits, 10 * keys / 3);
    else
      EXPECT_EQ(hits, 0U);
  }
}

}  // namespace
}  // namespace vpmu::uarch::test
