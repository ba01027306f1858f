#include "uarch/processor_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "accesses.hpp"

namespace vpmu::uarch::test {
namespace {

class AProcessorModel : public testing::Test {
 protected:
  /// Runs an instruction with these accesses; returns what a record would say about it.
  Retirement run(const std::vector<SeenAccess>& accesses, bool load, bool store) {
    model_.begin_instruction();
    for (const SeenAccess& a : accesses) model_.accessed(a, now_);
    model_.retired(load, store);
    now_ += 1000;  // so that fills are complete
    Retirement r{.has_load = load, .has_store = store};
    model_.complete(r);
    return r;
  }

  /// Fetches an instruction from `lines` lines of code.
  FrontendOutcome fetch(std::uint64_t at, unsigned lines = 1) {
    model_.begin_instruction();
    for (unsigned n = 0; n < lines; ++n, at += line_bytes)
      model_.fetched({.linear = at, .physical = at, .page_bytes = 4096});
    Retirement r;
    model_.complete(r);
    return r.frontend;
  }

  ProcessorModel model_{*find_profile("skylake")};
  std::uint64_t now_{};
};

TEST_F(AProcessorModel, TellsWhereALoadFoundItsData) {
  const Retirement cold = run({load_of(0x1000)}, true, false);
  EXPECT_EQ(cold.load.level, HitLevel::dram);
  EXPECT_TRUE(cold.load.stlb_miss);
  EXPECT_GT(cold.load.latency, 100);
  const Retirement warm = run({load_of(0x1008)}, true, false);
  EXPECT_EQ(warm.load.level, HitLevel::l1);
  EXPECT_FALSE(warm.load.stlb_miss);
  EXPECT_EQ(warm.load.latency, 4);
  EXPECT_EQ(warm.store.level, HitLevel::unknown);
}

// SDM 3B 18.2.1.2: the last level's events include those of code.
TEST_F(AProcessorModel, CodeComesThroughTheLastLevel) {
  constexpr std::uint64_t code = 0x9000;
  const FrontendOutcome cold = fetch(code, 2), warm = fetch(code, 2);
  EXPECT_EQ(cold.llc_references, 2);
  EXPECT_EQ(cold.llc_misses, 2);
  EXPECT_EQ(warm.llc_references, 0);
  model_.flushed_line({.linear = code, .physical = code});
  EXPECT_EQ(fetch(code).llc_misses, 1);
  EXPECT_EQ(model_.count(Counts::llc_references), 3U);
  EXPECT_EQ(model_.count(Counts::llc_misses), 3U);
}

// Each line that is filled into an L1 counts as one, and so does each miss of the first-level TLB.
TEST_F(AProcessorModel, TellsLinesAndPagesThatCame) {
  EXPECT_EQ(run({load_of(0x103C)}, true, false).l1d_fills, 2) << "two lines";
  EXPECT_EQ(run({load_of(0x1040)}, true, false).l1d_fills, 0);
  EXPECT_EQ(run({load_of(0x1080), store_of(0x5000)}, true, true).l1d_fills, 2);
  EXPECT_EQ(model_.count(Counts::l1d_fills), 4U);
  const FrontendOutcome cold = fetch(0x9000, 2), warm = fetch(0x9000, 2);
  EXPECT_EQ(cold.l1i_misses, 2);
  EXPECT_EQ(cold.itlb_walks, 1);
  EXPECT_EQ(warm.l1i_misses + warm.itlb_walks + warm.itlb_stlb_hits, 0);
  const FrontendOutcome data_was_there = fetch(0x5000, 2);
  EXPECT_EQ(data_was_there.itlb_stlb_hits, 1);
  EXPECT_EQ(model_.count(Counts::l1i_misses), 4U);
  EXPECT_EQ(model_.count(Counts::itlb_walks), 1U);
  EXPECT_EQ(model_.count(Counts::itlb_stlb_hits), 1U);
}

// LOCK INC: the engine reports it as one access.
TEST_F(AProcessorModel, ALockedInstructionLoadsWhatItStores) {
  const Retirement r = run({store_of(0x1000)}, true, true);
  EXPECT_EQ(r.load.level, HitLevel::dram);
  EXPECT_EQ(r.store.level, HitLevel::dram);
  EXPECT_EQ(model_.count(Counts::l3_miss), 1U);
  EXPECT_EQ(model_.count(Counts::llc_misses), 2U);
}

TEST_F(AProcessorModel, TheFartherHalfOfALoadAcrossPagesDecides) {
  run({load_of(0x1FF8)}, true, false);
  const Retirement r = run({load_of(0x1FFC, 4), load_of(0x2000, 4, true)}, true, false);
  EXPECT_EQ(r.load.level, HitLevel::dram);
  EXPECT_TRUE(r.load.stlb_miss);
  const Retirement back = run({load_of(0x2FFC, 4), load_of(0x3000, 4, true)}, true, false);
  EXPECT_EQ(back.load.level, HitLevel::dram);
  EXPECT_EQ(model_.count(Counts::l3_miss), 3U) << "one for each instruction";
}

// Rule S4: of a string instruction's elements the last one counts.
TEST_F(AProcessorModel, TheLastElementCounts) {
  run({load_of(0x1000)}, true, false);
  const Retirement r = run({load_of(0x5000), store_of(0x6000), load_of(0x1000), store_of(0x6008)}, true, true);
  EXPECT_EQ(r.load.level, HitLevel::l1);
  EXPECT_EQ(r.load.address.value(), 0x1000U);
  EXPECT_EQ(r.store.address.value(), 0x6008U);
  EXPECT_EQ(model_.count(Counts::l1_hit), 1U);
}

TEST_F(AProcessorModel, WhatWasAbandonedIsNotTheNextInstructions) {
  model_.accessed(load_of(0x1000), 0);
  model_.abandoned();
  const Retirement r = run({}, true, false);
  EXPECT_EQ(r.load.level, HitLevel::unknown);
  EXPECT_EQ(model_.count(Counts::l3_miss), 0U);
}

TEST_F(AProcessorModel, TellsMispredictions) {
  const SeenBranch branch{
      .at = 0x10, .fall_through = 0x12, .to = 0x80, .kind = BranchKind::near_ind_jmp, .taken = true};
  model_.begin_instruction();
  model_.branched(branch);
  Retirement r{.branch = {.kind = BranchKind::near_ind_jmp, .taken = true}};
  model_.complete(r);
  EXPECT_TRUE(r.branch.mispredicted);
  EXPECT_EQ(model_.count(Counts::mispredicts), 1U);
  EXPECT_EQ(model_.count(Counts::mispredicts_taken), 1U);
  EXPECT_EQ(model_.count(Counts::mispredicts_conditional), 0U);
  model_.begin_instruction();
  Retirement plain{.branch = {.kind = BranchKind::near_ret, .taken = true}};
  model_.complete(plain);
  EXPECT_FALSE(plain.branch.mispredicted);
}

TEST_F(AProcessorModel, TellsMissesOfTheFirstTlbThatTheSecondHas) {
  constexpr std::uint64_t page = 4096;
  const std::uint64_t pages = find_profile("skylake")->dtlb.small.entries() * 4;
  for (std::uint64_t i = 0; i < pages; ++i) run({load_of(0x100000 + i * page)}, true, false);
  const std::uint64_t walks = model_.count(Counts::stlb_miss_loads), misses = model_.count(Counts::dtlb_miss_loads);
  EXPECT_EQ(walks, pages);
  EXPECT_EQ(misses, pages) << "what misses both misses the first";
  const Retirement again = run({load_of(0x100000)}, true, false);
  EXPECT_TRUE(again.load.dtlb_miss);
  EXPECT_FALSE(again.load.stlb_miss);
  EXPECT_EQ(model_.count(Counts::dtlb_miss_loads), misses + 1);
  EXPECT_EQ(model_.count(Counts::stlb_miss_loads), walks);
  run({store_of(0x100000 + 64 * page)}, false, true);
  EXPECT_EQ(model_.count(Counts::dtlb_miss_stores), 1U);
  EXPECT_EQ(model_.count(Counts::stlb_miss_stores), 0U);
}

TEST_F(AProcessorModel, TellsMispredictionsByKind) {
  // Predicted taken at first; a return without its call goes by the targets, which are empty.
  model_.branched({.at = 0x10, .fall_through = 0x12, .to = 0x12, .kind = BranchKind::conditional, .taken = false});
  model_.branched({.at = 0x20, .fall_through = 0x21, .to = 0x80, .kind = BranchKind::near_ret, .taken = true});
  EXPECT_EQ(model_.count(Counts::mispredicts), 2U);
  EXPECT_EQ(model_.count(Counts::mispredicts_conditional), 1U);
  EXPECT_EQ(model_.count(Counts::mispredicts_not_taken), 1U);
  EXPECT_EQ(model_.count(Counts::mispredicts_return), 1U);
  EXPECT_EQ(model_.count(Counts::mispredicts_taken), 1U);
}

TEST_F(AProcessorModel, TellsWhatFetchingMissed) {
  model_.begin_instruction();
  model_.fetched({.linear = 0x4000, .physical = 0x4000, .page_bytes = 4096});
  Retirement r;
  model_.complete(r);
  EXPECT_TRUE(r.frontend.dsb_miss && r.frontend.l1i_miss && r.frontend.l2_miss && r.frontend.itlb_miss &&
              r.frontend.stlb_miss);
  model_.begin_instruction();
  model_.fetched({.linear = 0x4000, .physical = 0x4000, .page_bytes = 4096});
  model_.complete(r);
  EXPECT_FALSE(r.frontend.dsb_miss || r.frontend.l1i_miss || r.frontend.l2_miss || r.frontend.itlb_miss ||
               r.frontend.stlb_miss);
}

// A bubble lasts as long as the fetch of the line and its translation; two cycles more without decoded
// micro-operations.
TEST_F(AProcessorModel, TellsBubblesBehindFetches) {
  const Latencies& latency = find_profile("skylake")->latency;
  const FrontendOutcome cold = fetch(0x4000);
  EXPECT_EQ(cold.bubble_cycles, 2 + latency.dram + latency.walk);
  EXPECT_EQ(cold.bubble_slots, 4);
  const FrontendOutcome warm = fetch(0x4000);
  EXPECT_EQ(warm.bubble_cycles, 0);
  EXPECT_EQ(warm.bubble_slots, 0);
  EXPECT_EQ(fetch(0x4040).bubble_cycles, 2 + latency.dram) << "the page is known";
  // 64 KiB of code: more than the L1I, less than the L2; 16 pages stay in the ITLB.
  for (std::uint64_t at = 0x10000; at < 0x20000; at += 64) fetch(at);
  const FrontendOutcome again = fetch(0x4040);
  EXPECT_TRUE(again.l1i_miss && !again.l2_miss && !again.itlb_miss && again.dsb_miss);
  EXPECT_EQ(again.bubble_cycles, 2 + latency.l2);
}

PlanEntry offcore_entry(OffcoreRequest request, OffcoreSupplier supplier) {
  return {.counts = Counts::offcore, .offcore = static_cast<OffcoreFilter>(1U << offcore_cell(request, supplier))};
}

// A line that misses the L2 makes one request, whatever supplies it.
TEST_F(AProcessorModel, TellsWhatLeavesTheCore) {
  using enum OffcoreRequest;
  using enum OffcoreSupplier;
  const Retirement split = run({load_of(0x103C)}, true, false);
  EXPECT_EQ(split.offcore[offcore_cell(demand_data_read, local_dram)], 2) << "two lines";
  const Retirement warm = run({load_of(0x1040)}, true, false);
  EXPECT_EQ(offcore_sum(warm.offcore, 0xFF), 0U);
  const Retirement stored = run({store_of(0x5000)}, false, true);
  EXPECT_EQ(stored.offcore[offcore_cell(demand_rfo, local_dram)], 1);
  // 1 MiB evicts everything from the L2 of 256 KiB; the L3 keeps all.
  for (std::uint64_t at = 0x100000; at < 0x200000; at += 64) run({load_of(at)}, true, false);
  const Retirement back = run({load_of(0x5000)}, true, false);
  EXPECT_EQ(back.offcore[offcore_cell(demand_data_read, l3)], 1);
  model_.begin_instruction();
  model_.fetched({.linear = 0x9000, .physical = 0x9000, .page_bytes = 4096});
  Retirement code;
  model_.complete(code);
  EXPECT_EQ(code.offcore[offcore_cell(demand_code_read, local_dram)], 1);
  EXPECT_EQ(model_.count(offcore_entry(demand_data_read, local_dram)), 2U + 0x100000 / 64);
  EXPECT_EQ(model_.count(offcore_entry(demand_rfo, local_dram)), 1U);
  EXPECT_EQ(model_.count(offcore_entry(demand_data_read, l3)), 1U);
  EXPECT_EQ(model_.count(offcore_entry(demand_code_read, local_dram)), 1U);
  EXPECT_EQ(model_.count(offcore_entry(demand_rfo, l3)), 0U);
}

constexpr std::uint16_t latency_over = 11;

/// How often each event counts by the core's rules in these retirements.
std::map<Counts, std::uint64_t> by_the_rules(const std::vector<Retirement>& retired) {
  std::map<Counts, std::uint64_t> n;
  for (const Retirement& r : retired) {
    const HitLevel level = r.has_load ? r.load.level : HitLevel::unknown;
    const HitLevel stored = r.has_store ? r.store.level : HitLevel::unknown;
    const auto far = [](HitLevel l) { return l == HitLevel::l3 || l == HitLevel::dram; };
    n[Counts::l1_hit] += level == HitLevel::l1;
    n[Counts::lfb_hit] += level == HitLevel::lfb;
    n[Counts::l1_miss] += level == HitLevel::l2 || far(level);
    n[Counts::l2_hit] += level == HitLevel::l2;
    n[Counts::l2_miss] += far(level);
    n[Counts::l3_hit] += level == HitLevel::l3;
    n[Counts::l3_miss] += level == HitLevel::dram;
    n[Counts::llc_references] += static_cast<unsigned>(far(level)) + static_cast<unsigned>(far(stored));
    n[Counts::llc_misses] +=
        static_cast<unsigned>(level == HitLevel::dram) + static_cast<unsigned>(stored == HitLevel::dram);
    n[Counts::dtlb_miss_loads] += r.has_load && r.load.dtlb_miss;
    n[Counts::dtlb_miss_stores] += r.has_store && r.store.dtlb_miss;
    n[Counts::stlb_miss_loads] += r.has_load && r.load.stlb_miss;
    n[Counts::stlb_miss_stores] += r.has_store && r.store.stlb_miss;
    n[Counts::l1d_fills] += r.l1d_fills;
    n[Counts::load_latency] += r.has_load && (r.load.latency == 0 || r.load.latency > latency_over);  // rule L2
  }
  return n;
}

// The model's own counts are those of the PMU when it gets the retirements one by one.
TEST_F(AProcessorModel, CountsWhatItTells) {
  std::mt19937_64 random{5};
  std::vector<Retirement> retired;
  CountPlan plan{.size = 1};
  plan.entries[0] = {.counts = Counts::load_latency, .latency_over = latency_over};
  model_.follow(plan);
  for (unsigned i = 0; i < 50'000; ++i) {
    std::vector<SeenAccess> accesses;
    const bool load = random() % 3 != 0, store = random() % 3 == 0;
    const std::uint64_t room = random() % 4 == 0 ? 64ULL << 20 : 128ULL << 10;
    if (load && random() % 16 != 0)
      accesses.push_back(load_of(random() % room));  // a string without elements makes no access
    if (store) accesses.push_back(store_of(random() % room));
    retired.push_back(run(accesses, load, store));
  }
  for (const auto& [counts, n] : by_the_rules(retired)) {
    EXPECT_EQ(model_.count(counts), n) << static_cast<unsigned>(counts);
    if (counts != Counts::lfb_hit) {
      EXPECT_GT(n, 50U) << static_cast<unsigned>(counts);
    }
    EXPECT_TRUE(ProcessorModel::tells(counts));
  }
}

// Of many branches the model keeps those that an LBR would hold, with all cycles between them.
TEST(AModelOfBranches, KeepsTheLastOfThoseThatAreTaken) {
  std::mt19937_64 random{6};
  const auto branches = [&](unsigned count) {
    std::vector<SeenBranch> list;
    std::uint32_t now = 100;
    for (unsigned n = 0; n < count; ++n) {
      const auto kind = static_cast<BranchKind>(1 + random() % 6);
      const std::uint64_t at = random() % 64 * 16;
      now += static_cast<std::uint32_t>(1 + random() % 9);
      list.push_back({.at = at,
                      .fall_through = at + 4,
                      .to = random() % 3 == 0 ? at + 4 : random() % 1024,
                      .kind = kind,
                      .taken = kind != BranchKind::conditional || random() % 2 == 0,
                      .now = now});
    }
    return list;
  };
  for (const unsigned count : {0U, 1U, 20U, 40U, 500U}) {
    for (const bool call_stack : {false, true}) {
      ProcessorModel model{*find_profile("skylake")};
      const std::vector<SeenBranch> list = branches(count);
      constexpr std::uint8_t but_returns = 0xFF & ~(1U << static_cast<unsigned>(BranchKind::near_ret));
      model.keep_branches(3, {.kinds = {0, but_returns}, .depth = 16, .call_stack = call_stack}, 100);
      for (const SeenBranch& b : list) model.branched(b);
      const BranchRun run = model.kept_branches(list.empty() ? 107 : list.back().now + 7);
      std::vector<SeenBranch> taken;
      for (const SeenBranch& b : list)
        if (b.taken && b.kind != BranchKind::near_ret) taken.push_back(b);
      ASSERT_EQ(run.missing + run.branches.size(), taken.size());
      EXPECT_EQ(run.branches.size(), call_stack ? taken.size() : std::min<std::size_t>(taken.size(), 16));
      std::uint32_t since = run.missing == 0 ? 100 : taken[run.missing - 1].now;
      for (std::size_t i = 0; i < run.branches.size(); ++i) {
        const SeenBranch& b = taken[run.missing + i];
        const PassedBranch& kept = run.branches[i];
        EXPECT_EQ(kept.branch.from.value(), b.at);
        EXPECT_EQ(kept.branch.to.value(), b.to);
        EXPECT_EQ(kept.branch.what.kind, b.kind);
        EXPECT_EQ(kept.branch.what.to_next, b.to == b.fall_through);
        EXPECT_EQ(kept.branch.cpl, 3);
        EXPECT_EQ(kept.cycles, b.now - since);
        since = b.now;
      }
      EXPECT_EQ(run.cycles_behind, list.empty() ? 7 : list.back().now + 7 - since);
      model.branched({.at = 1, .fall_through = 5, .to = 9, .kind = BranchKind::near_rel_jmp, .taken = true, .now = 1});
      EXPECT_EQ(model.kept_branches(0).branches.size(), run.branches.size()) << "no more are kept";
    }
  }
  ProcessorModel model{*find_profile("skylake")};
  model.keep_branches(0, {.kinds = {0, 0xFF}, .depth = 16}, 0);
  model.branched({.at = 1, .fall_through = 5, .to = 9, .kind = BranchKind::near_rel_jmp, .taken = true, .now = 1});
  EXPECT_TRUE(model.kept_branches(5).branches.empty()) << "of the other level";
}

// With more branches than it has room for, the model keeps what fits, and counts the missing ones.
TEST(AModelOfBranches, TellsOfNoMoreThanItHasRoomFor) {
  ProcessorModel model{*find_profile("skylake")};
  constexpr std::uint64_t max = ProcessorModel::max_of_call_stack;
  model.keep_branches(0, {.kinds = {0xFF, 0}, .depth = 16, .call_stack = true}, 0);
  for (std::uint32_t n = 1; n <= max + 5; ++n)
    model.branched(
        {.at = n, .fall_through = n + 5, .to = 9, .kind = BranchKind::near_rel_jmp, .taken = true, .now = n});
  const BranchRun run = model.kept_branches(max + 5);
  EXPECT_EQ(run.branches.size(), max);
  EXPECT_EQ(run.missing, 5U);
}

// While only branches are wanted, accesses reach no caches or TLBs, whether reported one by one or by blocks.
TEST(AModelOfBranches, LeavesTheCachesAlone) {
  ProcessorModel model{*find_profile("skylake")};
  const auto plan_of = [](Counts counts) {
    CountPlan plan{.size = 1, .branches_wanted = true};
    plan.entries[0] = {.counts = counts};
    return plan;
  };
  SeenBlock block{.rip = 0x1000, .instructions = 2};
  block.branch = {.at = 0x1003, .fall_through = 0x1005, .kind = BranchKind::conditional};
  const std::array lines{SeenCode{.linear = 0x1000, .physical = 0x1000, .page_bytes = 4096}};
  const std::array accesses{BlockAccess{.flags = Seen::retires | Seen::op_loads, .bytes = 8}};
  block.lines = lines;
  block.accesses = accesses;
  std::array<SeenPage, tlb_entries> pages{};
  pages.fill({.physical = 0x8000, .page_bytes = 4096});
  SeenBlocks all{.blocks = {}, .addresses = {}, .pages = pages, .line = ~0ULL};
  const auto run = [&] {
    const std::array<const SeenBlock*, 2> blocks{&block, &block};
    const std::array<std::uint64_t, 2> addresses{0x40, 0x80};
    all.blocks = blocks;
    all.addresses = addresses;
    model.saw_blocks(all);
    model.fetched(block.lines[0]);
    model.accessed(load_of(0x40), all.now);
    model.retired(true, false);
  };
  const auto seen = [&] {
    return model.count(Counts::l1_hit) + model.count(Counts::l1_miss) + model.count(Counts::lfb_hit);
  };
  for (const Counts counts : {Counts::mispredicts, Counts::mispredicts_return, Counts::branches}) {
    model.follow(plan_of(counts));
    for (unsigned n = 0; n < 10; ++n) run();
    EXPECT_EQ(seen() + model.count(Counts::llc_references), 0U);
  }
  EXPECT_EQ(all.now, 120U);
  EXPECT_EQ(all.line, 0x1000U);
  model.follow(plan_of(Counts::l1_hit));
  run();
  EXPECT_EQ(seen(), 3U);
  EXPECT_GT(model.count(Counts::llc_misses), 1U) << "of data and code";
}

}  // namespace
}  // namespace vpmu::uarch::test
