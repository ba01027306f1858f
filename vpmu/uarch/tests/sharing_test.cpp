// Caches of several cores: which cores have a line, and which one has modified it. SDM 3A 11.4.
#include "uarch/sharing.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "uarch/processor_model.hpp"

namespace vpmu::uarch {
namespace {

constexpr std::uint64_t line = 0x1000;

class Cores : public testing::Test {
 protected:
  Cores() {
    for (Hierarchy* const core : {&a, &b, &c}) core->share(sharing);
  }
  static DataAccess at(std::uint64_t address) { return {.linear = address, .physical = address, .bytes = 8}; }
  /// Loads after all fills in flight are complete.
  static HitLevel load(Hierarchy& core, std::uint64_t address = line) {
    core.advance(1000);
    return core.load(at(address)).level;
  }
  static HitLevel store(Hierarchy& core, std::uint64_t address = line) {
    core.advance(1000);
    return core.store(at(address)).level;
  }

  const Profile& profile = *find_profile("skylake");
  Sharing sharing;
  Hierarchy a{profile}, b{profile}, c{profile};
};

TEST_F(Cores, ALineThatAnotherChangedIsHitModified) {
  EXPECT_EQ(store(a), HitLevel::dram);
  b.advance(1000);
  const DataResult got = b.load(at(line));
  EXPECT_EQ(got.level, HitLevel::l3_modified);
  EXPECT_GE(got.latency, profile.latency.l3 + profile.latency.modified);
  EXPECT_EQ(load(a), HitLevel::l1) << "it keeps the line";
  EXPECT_EQ(load(c), HitLevel::l3_shared) << "and nobody has it changed now";
  EXPECT_EQ(store(a), HitLevel::l1) << "but must have it alone again";
  EXPECT_EQ(load(b), HitLevel::l3_modified);
}

TEST_F(Cores, AStoreTakesTheLineFromAllOthers) {
  for (Hierarchy* const core : {&a, &b, &c}) load(*core);
  EXPECT_EQ(load(b), HitLevel::l1);
  EXPECT_EQ(store(c), HitLevel::l1);
  EXPECT_EQ(load(a), HitLevel::l3_modified);
  EXPECT_EQ(store(b), HitLevel::l3_shared);
  EXPECT_EQ(store(a), HitLevel::l3_modified);
}

TEST_F(Cores, AStoreWaitsUntilTheOthersHaveLostTheLine) {
  const auto waits = [this](Hierarchy& core, std::uint64_t address) {
    core.advance(1000);
    return core.store(at(address)).latency - profile.latency.l1;
  };
  constexpr std::uint64_t own = line + 4096;
  const unsigned upgrade = offcore_cell(OffcoreRequest::demand_rfo, OffcoreSupplier::l3_shared);
  for (Hierarchy* const core : {&a, &b}) load(*core);
  EXPECT_EQ(waits(a, line), profile.latency.l3 + profile.latency.shared);
  EXPECT_EQ(a.offcore()[upgrade], 1U);
  EXPECT_EQ(waits(a, line), 0) << "it is its own now";
  load(a, own);
  EXPECT_EQ(waits(a, own), 0) << "nobody else has it";
  EXPECT_EQ(a.offcore()[upgrade], 1U);
}

// Two cores store to different parts of one line: false sharing.
TEST_F(Cores, NeighboursInALineShareIt) {
  store(a, line);
  store(b, line + 32);
  EXPECT_EQ(load(a, line), HitLevel::l3_modified);
  EXPECT_EQ(store(a, line + 64), HitLevel::dram);
  EXPECT_EQ(store(b, line + 128), HitLevel::dram);
  EXPECT_EQ(load(a, line + 64), HitLevel::l1);
}

TEST_F(Cores, WhatWasWrittenBackIsNotChanged) {
  const std::uint64_t stride = std::uint64_t{profile.l2.sets} * line_bytes;
  const auto change_and_lose = [&](std::uint64_t address) {
    store(a, address);
    for (std::uint64_t n = 1; n <= 64; ++n) load(a, address + n * stride);
  };
  change_and_lose(line);
  EXPECT_EQ(load(b), HitLevel::l3) << "no core has it, an L3 does";
  EXPECT_EQ(load(a), HitLevel::l3_shared);
  constexpr std::uint64_t other = line + line_bytes;
  change_and_lose(other);
  EXPECT_EQ(load(a, other), HitLevel::l3);
  EXPECT_EQ(load(b, other), HitLevel::l3_shared) << "that it changed it was before";
}

// One package has one L3, whatever the number of its cores.
TEST_F(Cores, TheL3IsOneForAll) {
  const std::uint64_t lines = 2 * profile.l3.entries();
  EXPECT_EQ(load(a), HitLevel::dram);
  for (std::uint64_t n = 1; n <= lines; ++n) b.load(at(line + n * line_bytes));
  EXPECT_EQ(load(a), HitLevel::dram) << "what an inclusive L3 evicts leaves all cores";
  EXPECT_EQ(load(c, line + lines * line_bytes), HitLevel::l3_shared);
  EXPECT_EQ(load(c, line + lines * 3 / 4 * line_bytes), HitLevel::l3) << "of those that b's L2 has no longer";
}

// SDM 2A CLFLUSH: from every level of the hierarchy in the coherence domain.
TEST_F(Cores, AFlushedLineIsInNoCore) {
  for (Hierarchy* const core : {&a, &b}) load(*core);
  c.flush_line(line, line);
  EXPECT_EQ(load(a), HitLevel::dram);
  EXPECT_EQ(load(b), HitLevel::l3_shared);
}

// SDM 2C WBINVD: the caches that cores share, too; and what an inclusive one has not, no core has.
TEST_F(Cores, FlushedCachesAreThoseOfAllBelowAnInclusiveL3) {
  for (Hierarchy* const core : {&a, &b}) load(*core);
  c.flush_caches();
  EXPECT_EQ(load(a), HitLevel::dram);
  Sharing of_server;
  const Profile& server = *find_profile("skylake-sp");
  Hierarchy one{server}, other{server};
  for (Hierarchy* const core : {&one, &other}) core->share(of_server);
  load(one);
  other.flush_caches();
  EXPECT_EQ(load(one), HitLevel::l1) << "its L3 is not inclusive";
}

TEST_F(Cores, OthersRequestsAreCountedByWhoAnswers) {
  store(a);
  load(b);
  load(c);
  const auto cell = [](OffcoreSupplier s) { return offcore_cell(OffcoreRequest::demand_data_read, s); };
  EXPECT_EQ(b.offcore()[cell(OffcoreSupplier::l3_modified)], 1U);
  EXPECT_EQ(c.offcore()[cell(OffcoreSupplier::l3_shared)], 1U);
  EXPECT_EQ(b.offcore()[cell(OffcoreSupplier::local_dram)], 0U);
}

TEST_F(Cores, CodeThatIsStoredToIsFetchedAgain) {
  EXPECT_EQ(a.fetch(line, line, PageSize::small).level, HitLevel::dram);
  EXPECT_TRUE(a.fetch_fast(line, line, PageSize::small));
  store(b);
  EXPECT_FALSE(a.fetch_repeats(line));
  EXPECT_EQ(a.fetch(line, line, PageSize::small).level, HitLevel::l3_modified);
}

/// A model of MESI with caches of unlimited size: for each line, the core that modified it, and the cores that have it.
class Coherence {
 public:
  HitLevel expect(unsigned core, std::uint64_t address, bool stores) {
    State& s = of_[address / line_bytes];
    const bool has = s.has.contains(core);
    HitLevel level = HitLevel::l1;
    if (!has) {
      level = s.owner ? HitLevel::l3_modified : s.has.empty() ? HitLevel::dram : HitLevel::l3_shared;
      s.owner.reset();
    }
    if (stores) {
      s.has = {core};
      s.owner = core;
    }
    s.has.insert(core);
    return level;
  }

 private:
  struct State {
    std::set<unsigned> has;
    std::optional<unsigned> owner;
  };
  std::map<std::uint64_t, State> of_;
};

// Few lines, which fit into every cache.
TEST_F(Cores, AreCoherentAsMesiSays) {
  std::mt19937 random{1};
  const std::array<Hierarchy*, 3> cores{&a, &b, &c};
  Coherence expected;
  std::array<unsigned, hit_level_count> seen{};
  for (unsigned n = 0; n < 100'000; ++n) {
    const auto core = static_cast<unsigned>(random() % 3);
    const std::uint64_t address = random() % 512 * 8;
    const bool stores = random() % 4 == 0;
    const HitLevel level = stores ? store(*cores[core], address) : load(*cores[core], address);
    ASSERT_EQ(level, expected.expect(core, address, stores)) << n;
    ++seen[static_cast<unsigned>(level)];
  }
  for (const HitLevel level : {HitLevel::l1, HitLevel::dram, HitLevel::l3_shared, HitLevel::l3_modified})
    EXPECT_GT(seen[static_cast<unsigned>(level)], 10U);
}

// The shortcut for accesses that change nothing must not hide that another core has taken a line, or must lose it.
TEST(SharedModels, KnowWhatChangesNothing) {
  const Profile& profile = *find_profile("haswell");
  Sharing sharing;
  Hierarchy first{profile}, second{profile};
  for (Hierarchy* const core : {&first, &second}) core->share(sharing);
  ProcessorModel one{first, 0}, other{second, 0};
  CountPlan plan;
  plan.entries[plan.size++] = {.counts = Counts::l3_hit_modified};
  std::uint64_t now = 0;
  for (ProcessorModel* const model : {&one, &other}) model->follow(plan);
  const auto run = [&](ProcessorModel& model, bool stores) {
    const std::uint8_t flags = Seen::retires | (stores ? Seen::store | Seen::op_stores : Seen::op_loads);
    const Seen seen{
        .access = {
            .flags = flags, .bytes = 8, .page_bytes = page_size, .linear = line, .physical = line, .now = now += 1000}};
    model.saw(std::span{&seen, 1});
  };
  constexpr unsigned rounds = 100;
  for (unsigned n = 0; n < rounds; ++n) {
    for (unsigned again = 0; again < 4; ++again) run(one, false);
    for (unsigned again = 0; again < 4; ++again) run(one, true);
    for (unsigned again = 0; again < 4; ++again) run(other, false);
  }
  EXPECT_EQ(other.count(Counts::l3_hit_modified), rounds);
  EXPECT_EQ(other.count(Counts::l3_hit_other_core), rounds);
  EXPECT_EQ(one.count(Counts::l3_hit_modified), 0U) << "it never lost the line";
}

/// Two threads of one core. Optimization manual, "Intel Hyper-Threading Technology Resource Sharing".
class Threads : public testing::Test {
 protected:
  static DataAccess at(std::uint64_t address) { return {.linear = address, .physical = address, .bytes = 8}; }
  DataResult load(unsigned thread, std::uint64_t address = line) {
    core.run_thread(thread);
    core.advance(1000);
    return core.load(at(address));
  }
  DataResult store(unsigned thread, std::uint64_t address = line) {
    core.run_thread(thread);
    core.advance(1000);
    return core.store(at(address));
  }

  const Profile& profile = *find_profile("skylake");
  Sharing sharing;
  Hierarchy core{profile, 2}, other{profile, 2};
};

TEST_F(Threads, HitWhatTheOtherHasChangedInTheirL1) {
  core.share(sharing);
  other.share(sharing);
  EXPECT_EQ(store(0).level, HitLevel::dram);
  EXPECT_EQ(load(1).level, HitLevel::l1) << "no HITM";
  EXPECT_EQ(store(1).level, HitLevel::l1);
  EXPECT_EQ(load(0).level, HitLevel::l1);
  other.advance(1000);
  EXPECT_EQ(other.load(at(line)).level, HitLevel::l3_modified) << "another core";
  EXPECT_EQ(core.l1d_fills(0), 1U);
  EXPECT_EQ(core.l1d_fills(1), 0U) << "each has its own counts";
}

TEST_F(Threads, TakeEachOthersRoomInTheL1) {
  const std::uint64_t stride = std::uint64_t{profile.l1d.sets} * line_bytes;
  load(0);
  for (std::uint64_t n = 1; n <= profile.l1d.ways; ++n) load(1, line + n * stride);
  EXPECT_NE(load(0).level, HitLevel::l1);
}

TEST_F(Threads, HaveTranslationsOfTheirOwnInSharedTlbs) {
  EXPECT_EQ(load(0).tlb, TlbResult::walk);
  EXPECT_EQ(load(0).tlb, TlbResult::hit);
  EXPECT_EQ(load(1).tlb, TlbResult::walk) << "the other's address space is another";
  EXPECT_EQ(load(0).tlb, TlbResult::hit);
  core.run_thread(1);
  core.flush_tlbs({});
  EXPECT_EQ(load(0).tlb, TlbResult::hit) << "the other has loaded its CR3";
  EXPECT_EQ(load(1).tlb, TlbResult::walk);
  const std::uint64_t stride = std::uint64_t{profile.dtlb.small.sets} * 4096;
  for (std::uint64_t n = 1; n <= profile.dtlb.small.ways; ++n) load(1, line + n * stride);
  EXPECT_EQ(load(0).tlb, TlbResult::stlb_hit) << "they share its room";
}

TEST_F(Threads, HaveHalfOfTheTlbForCode) {
  const auto fetch = [&](unsigned thread, std::uint64_t address) {
    core.run_thread(thread);
    return core.fetch(address, address, PageSize::small).tlb;
  };
  const std::uint64_t stride = std::uint64_t{profile.itlb.small.sets / 2} * 4096;
  for (std::uint64_t n = 0; n <= profile.itlb.small.ways; ++n) fetch(0, n * stride);
  EXPECT_EQ(fetch(0, 0), TlbResult::stlb_hit) << "the first was evicted";
  Hierarchy alone{profile};
  for (std::uint64_t n = 0; n <= profile.itlb.small.ways; ++n) alone.fetch(n * stride, n * stride, PageSize::small);
  EXPECT_EQ(alone.fetch(0, 0, PageSize::small).tlb, TlbResult::hit);
}

/// Three cycles for each instruction, told when it is asked.
class SlowClock final : public CoreClock {
 public:
  void fetch_by(CodeFetcher& /*fetcher*/, const TransferTimes& /*times*/) override {}
  BlockCode code_of(const SeenBlock& /*block*/) override { return {}; }
  void retire(const BlockCode& /*code*/, std::size_t /*number*/, std::span<const ClockedAccess> /*accesses*/,
              const CodeArrival& /*arrival*/) override {}
  void begin(const SeenBlock& /*block*/, std::uint64_t /*now*/, std::size_t /*first*/) override {}
  void reach(std::uint64_t /*now*/) override {}
  void access(bool /*store*/, const ClockedAccess& /*access*/, std::uint64_t /*now*/) override {}
  void retire_to(std::uint64_t /*now*/) override {}
  std::uint64_t cycles(std::uint64_t now) override { return told_ = 3 * now; }
  void visit_state(const StateVisitor& /*visit*/, std::uint64_t /*now*/) override {}
};

// The other thread goes on from there, whether the core is saved in between or not.
TEST_F(Threads, GoOnWhenTheOthersCyclesHavePassed) {
  SlowClock clock;
  ProcessorModel model{core, 0};
  model.keep_time(clock);
  EXPECT_EQ(model.cycles(100), 300U);
  EXPECT_EQ(core.cycles(), 300U);
}

}  // namespace
}  // namespace vpmu::uarch
