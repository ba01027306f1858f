#include "uarch/hierarchy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace vpmu::uarch::test {
namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

DataAccess at(std::uint64_t address, std::uint32_t bytes = 8, PageSize page = PageSize::small) {
  return {.linear = address, .physical = address, .bytes = bytes, .page = page};
}

/// Counts loads by the level that they hit.
struct Tally {
  std::array<unsigned, hit_level_count> of{};
  unsigned all{};
  void add(const DataResult& result) {
    ++of[static_cast<unsigned>(result.level)];
    ++all;
  }
  [[nodiscard]] unsigned at(HitLevel level) const { return of[static_cast<unsigned>(level)]; }
};

/// Follows a random cycle through all lines of an array, after one round to warm up.
Tally walk(Hierarchy& h, std::uint64_t bytes, unsigned rounds) {
  std::vector<std::uint64_t> order(bytes / line_bytes);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937_64{7});
  Tally tally;
  for (unsigned round = 0; round <= rounds; ++round)
    for (const std::uint64_t line : order) {
      const DataResult result = h.load(at(line * line_bytes, 8, PageSize::large));
      h.advance(4);
      if (round > 0) tally.add(result);
    }
  return tally;
}

// On every processor at least 90 % of the loads of a pointer chase hit the level that its array fits in.
TEST(Hierarchy, WalksFindTheirLevel) {
  for (const Profile& p : all_profiles()) {
    const std::uint64_t l2 = p.l2.entries() * line_bytes, l3 = p.l3.entries() * line_bytes;
    const std::array rows{std::pair{16 * kib, HitLevel::l1}, std::pair{l2 * 3 / 4, HitLevel::l2},
                          std::pair{l3 / 2, HitLevel::l3}, std::pair{l3 * 3 / 2, HitLevel::dram}};
    for (const auto& [bytes, level] : rows) {
      Hierarchy h{p};
      const Tally tally = walk(h, bytes, 1);
      EXPECT_GE(tally.all, 256U);
      // An L3 that adapts keeps what it can of more than fits: two thirds of that here.
      const bool adapts = level == HitLevel::dram && p.l3_replacement == Replacement::adaptive;
      EXPECT_GE(tally.at(level) * 10, tally.all * (adapts ? 3 : 9))
          << p.name << ' ' << bytes << " bytes, level " << static_cast<unsigned>(level);
    }
  }
}

const Profile& skylake() { return *find_profile("skylake"); }

// Loads with known results: cold, in the L1, and of the next line.
TEST(Hierarchy, LatencyIsThatOfTheLevel) {
  Hierarchy h{skylake()};
  const Latencies& l = skylake().latency;
  const DataResult first = h.load(at(0));
  EXPECT_EQ(first.level, HitLevel::dram);
  EXPECT_EQ(first.tlb, TlbResult::walk);
  EXPECT_EQ(first.latency, l.dram + l.walk);
  EXPECT_EQ(first.walk, l.walk);
  h.advance(1000);
  EXPECT_EQ(h.load(at(8)), (DataResult{HitLevel::l1, TlbResult::hit, l.l1, false}));
  EXPECT_EQ(h.load(at(64)), (DataResult{HitLevel::dram, TlbResult::hit, l.dram, false}));
}

// A load of a line whose fill is in flight waits for the rest of the fill.
TEST(Hierarchy, FillBufferHitsWaitForTheRest) {
  Hierarchy h{skylake()};
  const Latencies& l = skylake().latency;
  h.load(at(0));
  h.advance(150);
  EXPECT_EQ(h.load(at(8)),
            (DataResult{HitLevel::lfb, TlbResult::hit, static_cast<std::uint16_t>(l.dram - 150), false}));
  h.advance(l.dram - 150U - 2);
  EXPECT_EQ(h.load(at(8)).latency, l.l1) << "never faster than the L1";
  EXPECT_EQ(h.load(at(8)).level, HitLevel::lfb);
  h.advance(2);
  EXPECT_EQ(h.load(at(8)).level, HitLevel::l1);
}

// 248966, store forwarding: what a store has is not waited for, though its line is not there yet.
TEST(Hierarchy, WhatAStoreHasIsForwarded) {
  const auto hits = [](const DataResult& load) {
    return load.level == HitLevel::l1 && load.latency == skylake().latency.l1 && load.waits == 0;
  };
  for (const bool pipeline : {false, true}) {
    Hierarchy h{skylake()};
    if (pipeline) h.keep_time_outside();
    EXPECT_EQ(h.store(at(16, 8)).level, HitLevel::dram);
    for (const auto& [address, count] : {std::pair{16U, 8U}, {20U, 4U}, {23U, 1U}})
      EXPECT_TRUE(hits(h.load(at(address, count)))) << address;
    for (const auto& [address, count] : {std::pair{15U, 8U}, {16U, 16U}, {24U, 1U}, {0U, 64U}})
      EXPECT_EQ(h.load(at(address, count)).level, HitLevel::lfb) << address;
    h.store(at(24, 8));
    EXPECT_TRUE(hits(h.load(at(16, 16)))) << "of two stores, which wait for the line";
    EXPECT_EQ(h.load(at(32, 8)).level, HitLevel::lfb);
    h.prefetch(at(32, 8), OffcoreRequest::demand_rfo, true);
    EXPECT_EQ(h.load(at(32, 8)).level, HitLevel::lfb) << "PREFETCHW stores nothing";
    h.load(at(256, 8));
    h.store(at(264, 8));
    EXPECT_EQ(h.load(at(256, 8)).level, HitLevel::lfb);
    EXPECT_TRUE(hits(h.load(at(264, 8)))) << "a load had asked for the line";
    EXPECT_EQ(h.store(at(508, 8)).level, HitLevel::dram);
    EXPECT_EQ(h.load(at(508, 8)).level, HitLevel::l1) << "in two lines";
    EXPECT_EQ(h.load(at(508, 9)).level, HitLevel::lfb);
    for (unsigned i = 0; i < 2; ++i) h.advance(1000);
    EXPECT_TRUE(hits(h.load(at(0, 8))));
  }
}

// Each thread has its own store buffer.
TEST(Hierarchy, WhatAThreadStoresIsNotForwardedToTheOther) {
  Hierarchy h{skylake(), 2};
  h.store(at(0));
  EXPECT_EQ(h.load(at(0)).level, HitLevel::l1);
  h.run_thread(1);
  EXPECT_EQ(h.load(at(0)).level, HitLevel::lfb);
  h.store(at(0));
  EXPECT_EQ(h.load(at(0)).level, HitLevel::l1);
  h.run_thread(0);
  EXPECT_EQ(h.load(at(0)).level, HitLevel::lfb) << "only those of the last thread are known";
}

// Ten fills can be in flight; the eleventh waits for the first.
TEST(Hierarchy, AFullSetOfFillBuffersTakesTime) {
  Hierarchy h{skylake()};
  for (unsigned i = 0; i < 10; ++i) h.load(at(i * line_bytes));
  EXPECT_EQ(h.cycles(), 0U);
  h.load(at(10 * line_bytes));
  EXPECT_EQ(h.cycles(), skylake().latency.dram);
}

TEST(Hierarchy, ASplitTouchesBothLines) {
  Hierarchy h{skylake()};
  const Latencies& l = skylake().latency;
  h.load(at(0));
  h.advance(1000);
  EXPECT_EQ(h.load(at(60)),
            (DataResult{HitLevel::dram, TlbResult::hit, static_cast<std::uint16_t>(l.dram + l.split), true}));
  h.advance(1000);
  EXPECT_EQ(h.load(at(60)),
            (DataResult{HitLevel::l1, TlbResult::hit, static_cast<std::uint16_t>(l.l1 + l.split), true}));
  EXPECT_EQ(h.load(at(56)), (DataResult{HitLevel::l1, TlbResult::hit, l.l1, false})) << "to the last byte of the line";
  EXPECT_EQ(h.load(at(64)).level, HitLevel::l1);
}

TEST(Hierarchy, StoresBringLinesIn) {
  Hierarchy h{skylake()};
  EXPECT_EQ(h.store(at(0)).level, HitLevel::dram);
  h.advance(1000);
  EXPECT_EQ(h.load(at(0)).level, HitLevel::l1);
}

/// The n-th line of those that share an L3 set with line 0.
std::uint64_t in_set_of_0(const Shape& l3, std::uint64_t n) { return l3_line(n * l3.sets) * line_bytes; }

TEST(Hierarchy, TheLastLevelSpreadsLines) {
  for (std::uint64_t line = 1; line < 1ULL << 40; line = 3 * line + 1) EXPECT_EQ(l3_line(l3_key(line)), line);
  const Shape l3 = find_profile("skylake")->l3;
  EXPECT_NE(l3_key(l3.sets) % l3.sets, 0U);
  EXPECT_EQ(l3_key(in_set_of_0(l3, 5) / line_bytes) % l3.sets, 0U);
}

/// Fills the L3 set of line 0 with many other lines, by code fetches, which do not evict line 0 from the L1D.
void push_out_of_l3(Hierarchy& h) {
  const Shape l3 = h.profile().l3;
  for (std::uint64_t n = 1; n <= l3.ways; ++n) {
    const std::uint64_t address = in_set_of_0(l3, n);
    h.fetch(address, address, PageSize::huge);
  }
}

// A line that an inclusive L3 evicts is evicted from the L1, too; a victim L3 does not do that.
TEST(Hierarchy, AnInclusiveLastLevelTakesLinesFromTheL1) {
  for (const auto& [name, expected] : {std::pair{"skylake", HitLevel::dram}, std::pair{"skylake-sp", HitLevel::l1}}) {
    Hierarchy h{*find_profile(name)};
    h.load(at(0));
    h.advance(1000);
    ASSERT_EQ(h.load(at(0)).level, HitLevel::l1);
    push_out_of_l3(h);
    h.advance(1000);
    EXPECT_EQ(h.load(at(0)).level, expected) << name;
  }
}

// Marks are reused after many changes. A line must not seem known because its old mark has come up again.
TEST(Hierarchy, ForgetsBeforeItsMarksComeAgain) {
  Repeats repeats{16};
  repeats.put(0);
  ASSERT_TRUE(repeats.has(0));
  for (std::uint64_t n = 0; n < 1U << 20; ++n) {
    repeats.drop_pages(16 * page_size);
    ASSERT_FALSE(repeats.has(0)) << n;
  }
  repeats.put(0);
  EXPECT_TRUE(repeats.has(0));
}

/// A hierarchy that knows that another access to its first line of data, or of code, would change nothing.
Hierarchy repeating(const char* profile) {
  Hierarchy h{*find_profile(profile)};
  h.load(at(0));
  h.fetch(0, 0, PageSize::small);
  h.advance(1000);
  h.load(at(0));
  EXPECT_TRUE(h.fetch_fast(0, 0, PageSize::small));
  EXPECT_TRUE(h.access_repeats(0, 8, false));
  EXPECT_TRUE(h.fetch_repeats(0));
  return h;
}

// This holds until another line or page becomes the most recently used one of its set, or the line is evicted.
TEST(Hierarchy, KnowsWhatChangesNothing) {
  const Profile& profile = skylake();
  const auto after = [&](const auto& change) {
    Hierarchy h = repeating("skylake");
    change(h);
    return std::pair{h.access_repeats(0, 8, false), h.fetch_repeats(0)};
  };
  constexpr std::pair both{true, true}, data{true, false}, code{false, true}, none{false, false};
  const std::uint64_t l1_stride = std::uint64_t{profile.l1d.sets} * line_bytes;
  EXPECT_EQ(after([](Hierarchy&) {}), both);
  EXPECT_EQ(after([](Hierarchy& h) { h.load(at(line_bytes)); }), both);
  EXPECT_FALSE(repeating("skylake").access_repeats(60, 8, false)) << "in two lines";
  // Another line of the set, in the page; in another page.
  EXPECT_EQ(after([&](Hierarchy& h) { h.load({.linear = 0, .physical = l1_stride, .bytes = 8}); }), code);
  EXPECT_EQ(after([&](Hierarchy& h) { h.load(at(profile.dtlb.small.sets * page_size + line_bytes)); }), code);
  EXPECT_EQ(after([&](Hierarchy& h) { h.load(at(page_size + line_bytes)); }), both) << "of another set of the TLB";
  EXPECT_EQ(after([&](Hierarchy& h) { h.load(at(line_bytes, 8, PageSize::large)); }), code);
  // Other code: of other sets, of the L1's, of the TLB's, and of the decoded micro-op cache's.
  const std::uint64_t decoded_stride = profile.decoded.sets * std::uint64_t{32};
  EXPECT_EQ(after([](Hierarchy& h) { h.fetch(line_bytes, line_bytes, PageSize::small); }), both);
  EXPECT_EQ(after([](Hierarchy& h) { h.fetch(page_size + line_bytes, line_bytes, PageSize::small); }), both);
  EXPECT_EQ(after([&](Hierarchy& h) { h.fetch(line_bytes, l1_stride, PageSize::small); }), data);
  EXPECT_EQ(after([&](Hierarchy& h) {
              h.fetch(profile.itlb.small.sets * page_size + line_bytes, line_bytes, PageSize::small);
            }),
            data);
  EXPECT_EQ(after([&](Hierarchy& h) { h.fetch(decoded_stride, line_bytes, PageSize::small); }), data);
  EXPECT_EQ(after([](Hierarchy& h) { h.fetch(line_bytes, line_bytes, PageSize::large); }), data);
  // Enough lines that the L3 evicts the line.
  EXPECT_EQ(after([&](Hierarchy& h) {
              for (std::uint64_t n = 1; n <= 2 * profile.l3.ways; ++n)
                h.fetch(line_bytes, in_set_of_0(profile.l3, n), PageSize::small);
            }),
            none);
  EXPECT_EQ(after([&](Hierarchy& h) {
              for (std::uint64_t n = 1; n <= 2 * profile.l3.ways; ++n)
                h.load({.linear = 0, .physical = in_set_of_0(profile.l3, n), .bytes = 8});
            }),
            none);
  EXPECT_EQ(after([](Hierarchy& h) { h.flush_line(0, 0); }), none);
  EXPECT_EQ(after([](Hierarchy& h) { h.flush_caches(); }), none);
  EXPECT_EQ(after([](Hierarchy& h) { h.flush_tlbs({}); }), none);
  EXPECT_EQ(after([](Hierarchy& h) { h.remapped(); }), none);
}

TEST(Hierarchy, KnowsCodeThatChangesNothingWithoutADecodedCache) { repeating("nehalem"); }

TEST(Hierarchy, CodeComesFromTheCachesToo) {
  Hierarchy h{skylake()};
  EXPECT_EQ(h.fetch(0, 0, PageSize::small),
            (FetchResult{HitLevel::dram, TlbResult::walk, false, skylake().latency.walk}));
  EXPECT_EQ(h.fetch(0, 0, PageSize::small), (FetchResult{HitLevel::l1, TlbResult::hit, true}));
  EXPECT_EQ(h.load(at(0)).level, HitLevel::l2) << "data and code share the L2";
  EXPECT_EQ(h.load(at(0)).tlb, TlbResult::hit);
}

// SDM 3A 11.6.
TEST(Hierarchy, AStoreTakesALineOfCode) {
  for (const Profile& p : all_profiles()) {
    Hierarchy h{p};
    EXPECT_FALSE(h.store(at(0)).changed_code) << p.name;
    for (unsigned n = 0; n < 3; ++n) {
      h.load(at(0));
      h.fetch(0, 0, PageSize::small);
      EXPECT_FALSE(h.load(at(0)).changed_code) << p.name;
      EXPECT_FALSE(h.access_repeats(0, 8, true)) << p.name;
      EXPECT_TRUE(h.store(at(0)).changed_code) << p.name;
      EXPECT_FALSE(h.store(at(0)).changed_code) << p.name << ", again";
      h.advance(1000);
      EXPECT_FALSE(h.fetch_repeats(0)) << p.name;
      const FetchResult again = h.fetch(0, 0, PageSize::small);
      EXPECT_NE(again.level, HitLevel::l1) << p.name;
      EXPECT_FALSE(again.decoded) << p.name;
      EXPECT_FALSE(h.access_repeats(0, 8, true)) << p.name;
    }
    h.fetch(line_bytes, line_bytes, PageSize::small);
    EXPECT_TRUE(h.store({.linear = line_bytes - 4, .physical = line_bytes - 4, .bytes = 8}).changed_code)
        << p.name << ", across lines";
  }
}

TEST(Hierarchy, FlushedTlbsWalkAndCachesStay) {
  Hierarchy h{skylake()};
  h.load(at(0));
  h.advance(1000);
  h.flush_tlbs({});
  const DataResult result = h.load(at(0));
  EXPECT_EQ(result.tlb, TlbResult::walk);
  EXPECT_EQ(result.level, HitLevel::l1);
}

// SDM 3A 4.10.2.4, 4.10.4.1: which translations MOV to CR3 and INVLPG leave, with PCIDs or without, on one thread or
// two.
TEST(Hierarchy, FlushesTheTranslationsThatTheManualNames) {
  using enum TlbFlush::Of;
  constexpr std::uint64_t own = 0, other = 16 * page_size, global = 32 * page_size;
  for (const Profile& p : all_profiles())
    for (const unsigned threads : {1U, 2U}) {
      Hierarchy h{p, threads};
      const auto data_walks = [&](std::uint64_t address) {
        return h.load({.linear = address, .physical = address, .bytes = 8, .global = address == global}).tlb ==
               TlbResult::walk;
      };
      const auto code_walks = [&](std::uint64_t address) {
        return h.fetch(address + (1 << 20), address, PageSize::small, address == global).tlb == TlbResult::walk;
      };
      const auto walks = [&](std::uint64_t address) {
        const bool data = data_walks(address);
        EXPECT_EQ(code_walks(address), data) << p.name << ' ' << address;
        return data;
      };
      const auto all_walk = [&] { return std::array{walks(own), walks(other), walks(global)}; };
      constexpr std::array none{false, false, false}, all{true, true, true}, all_but_global{true, true, false};
      SCOPED_TRACE(testing::Message() << p.name << ", threads " << threads);
      EXPECT_EQ(all_walk(), all);
      EXPECT_EQ(all_walk(), none);
      h.flush_tlbs({.of = address_space});  // without PCIDs
      EXPECT_EQ(all_walk(), all_but_global);
      h.flush_tlbs({.of = address_space, .pcid = 7});
      EXPECT_EQ(all_walk(), all_but_global);
      h.flush_tlbs({.of = nothing});
      EXPECT_EQ(all_walk(), none) << "PCID 0 has kept its own";
      EXPECT_TRUE(h.flush_tlbs({.of = nothing, .pcid = 7}));
      EXPECT_FALSE(h.flush_tlbs({.of = nothing, .pcid = 7}));
      EXPECT_EQ(all_walk(), none);
      h.flush_tlbs({.of = address_space});
      h.flush_tlbs({.of = nothing, .pcid = 7});
      EXPECT_EQ(all_walk(), none) << "the other was flushed";
      for (const std::uint64_t address : {own, global}) {
        h.flush_tlbs({.of = page, .pcid = 7, .linear = address + 8});
        h.flush_tlbs({.of = page, .pcid = 7, .linear = address + (1 << 20)});
        EXPECT_EQ(all_walk(), (std::array{address == own, false, address == global}));
      }
      h.flush_tlbs({.of = everything, .pcid = 7});
      EXPECT_EQ(all_walk(), all);
    }
}

// SDM 2A CLFLUSH: no level keeps the line, as data or code, and its fill in flight is dropped; other lines stay.
TEST(Hierarchy, AFlushedLineComesFromMemory) {
  for (const Profile& p : all_profiles()) {
    for (const unsigned wait : {0U, 1000U}) {
      Hierarchy h{p};
      for (const std::uint64_t address : {std::uint64_t{0}, line_bytes}) {
        h.load(at(address));
        h.fetch(address, address, PageSize::small);
      }
      h.advance(wait);
      h.flush_line(8, 8);
      EXPECT_EQ(h.load(at(0)).level, HitLevel::dram) << p.name << ", flushed after " << wait;
      EXPECT_NE(h.load(at(line_bytes)).level, HitLevel::dram) << p.name;
      h.flush_line(8, 8);
      const FetchResult fetched = h.fetch(0, 0, PageSize::small);
      EXPECT_EQ(fetched.level, HitLevel::dram) << p.name;
      EXPECT_FALSE(fetched.decoded) << p.name;
      EXPECT_EQ(fetched.tlb, TlbResult::hit) << "translations stay";
      EXPECT_EQ(h.fetch(line_bytes, line_bytes, PageSize::small).level, HitLevel::l1) << p.name;
    }
  }
}

// If a line is flushed during its fill and accessed again, its fill starts anew.
TEST(Hierarchy, AFlushedLineIsWaitedForAnew) {
  Hierarchy h{skylake()};
  h.load(at(0));
  h.advance(150);
  h.flush_line(0, 0);
  EXPECT_EQ(h.load(at(0)).level, HitLevel::dram);
  h.advance(100);
  const DataResult again = h.load(at(0));
  EXPECT_EQ(again.level, HitLevel::lfb);
  EXPECT_EQ(again.latency, skylake().latency.dram - 100);
}

// SDM 2C WBINVD.
TEST(Hierarchy, FlushedCachesHaveNothing) {
  for (const Profile& p : all_profiles()) {
    Hierarchy h{p};
    for (std::uint64_t line = 0; line < 64; ++line) h.load(at(line * line_bytes));
    h.fetch(0, 0, PageSize::small);
    h.flush_caches();
    EXPECT_FALSE(h.fetch(0, 0, PageSize::small).decoded) << p.name;
    for (std::uint64_t line = 1; line < 64; ++line) {
      const DataResult result = h.load(at(line * line_bytes));
      EXPECT_EQ(result.level, HitLevel::dram) << p.name;
      EXPECT_EQ(result.tlb, TlbResult::hit) << "translations stay";
    }
  }
}

TEST(Hierarchy, TheSameTraceGivesTheSameNumbers) {
  const auto run = [](Hierarchy& h) {
    std::mt19937_64 random{3};
    std::vector<DataResult> results;
    for (unsigned i = 0; i < 50'000; ++i) {
      const std::uint64_t address = random() % (random() % 2 == 0 ? 64 * kib : 16 * mib);
      if (i % 5 == 0) h.fetch(address, address, PageSize::small);
      results.push_back(i % 3 == 0 ? h.store(at(address)) : h.load(at(address)));
      h.advance(random() % 4);
    }
    return results;
  };
  Hierarchy h{skylake()}, other{skylake()};
  const auto first = run(h);
  EXPECT_EQ(run(other), first);
  EXPECT_EQ(other.cycles(), h.cycles());
  EXPECT_NE(run(h), first) << "caches are warm";
}

// A demand load of a line that a software prefetch has asked for waits for the rest of its fill, and says so.
TEST(Hierarchy, PrefetchedLinesAreThere) {
  Hierarchy h{skylake()};
  const Latencies& l = skylake().latency;
  EXPECT_EQ(h.prefetch(at(0), OffcoreRequest::demand_data_read, true).tlb, TlbResult::walk);
  h.advance(150);
  const DataResult early = h.load(at(8));
  EXPECT_EQ(early.level, HitLevel::lfb);
  EXPECT_EQ(early.met_prefetch, Prefetched::by_software);
  EXPECT_EQ(early.latency, l.dram - 150);
  h.advance(1000);
  EXPECT_EQ(h.load(at(16)), (DataResult{HitLevel::l1, TlbResult::hit, l.l1, false}));
  h.load(at(640));
  h.advance(10);
  EXPECT_EQ(h.load(at(648)).met_prefetch, Prefetched::no) << "a demand load's own fill";
  h.advance(1000);
  h.prefetch(at(1280), OffcoreRequest::demand_data_read, false);
  h.advance(1000);
  EXPECT_EQ(h.load(at(1280)).level, HitLevel::l2) << "PREFETCHT1 and PREFETCHT2";
  EXPECT_EQ(h.offcore()[offcore_cell(OffcoreRequest::demand_data_read, OffcoreSupplier::local_dram)], 3U);
}

}  // namespace
}  // namespace vpmu::uarch::test
