// The same trace leads to the same counts and the same caches, in whichever way a model gets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "uarch/processor_model.hpp"

namespace vpmu::uarch::test {
namespace {

/// Events as an engine might report them of a program: mostly accesses to lines that it has used before.
std::vector<Seen> random_trace(std::mt19937_64& random, unsigned length) {
  std::vector<Seen> trace;
  std::uint64_t now = 0;
  const auto place = [&] {
    return (random() % 8 != 0 ? random() % (16 << 10) : random() % (8 << 20)) & ~std::uint64_t{7};
  };
  const auto access = [&](std::uint64_t at, unsigned flags) {
    trace.push_back({.access = {.flags = static_cast<std::uint8_t>(flags),
                                .bytes = 8,
                                .page_bytes = 4096,
                                .linear = at,
                                .physical = at,
                                .now = now}});
  };
  while (trace.size() < length) {
    now += 1 + random() % 5;
    const std::uint64_t at = place();
    switch (random() % 8) {
      case 0: trace.push_back({.code = {.page_bytes = 4096, .linear = at & ~63ULL, .physical = at & ~63ULL}}); break;
      case 1:
        trace.push_back({.branch = {.branch_kind = BranchKind::conditional,
                                    .taken = random() % 2 != 0,
                                    .at = at,
                                    .fall_through = at + 2,
                                    .to = place()}});
        break;
      case 2: access(at, Seen::store | Seen::retires | Seen::op_stores); break;
      case 3:  // loads, then stores
        access(at, 0);
        access(at, Seen::store | Seen::retires | Seen::op_loads | Seen::op_stores);
        break;
      case 4:  // both in one
        access(at, Seen::store | Seen::retires | Seen::op_loads | Seen::op_stores |
                       ((at & 8) != 0 ? unsigned{Seen::locked} : 0U));
        break;
      case 5:  // across lines, and what an op gave up
        access(at + 60, 0);
        trace.push_back(random() % 2 != 0 ? Seen{.abandoned = {}} : Seen{.retired = {.flags = Seen::op_loads}});
        break;
      default: access(at, Seen::retires | Seen::op_loads); break;
    }
  }
  return trace;
}

/// A plan for which the last load must be known.
CountPlan plan_of_last_load() {
  CountPlan plan{.size = 1, .last_load_wanted = true};
  plan.entries[0] = {.counts = Counts::load_latency, .latency_over = 11};
  return plan;
}

/// Both must have kept the same last load (rule L6), which is returned.
std::optional<MemAccess> expect_same_last_load(ProcessorModel& x, ProcessorModel& y) {
  const auto a = x.take_last_load(), b = y.take_last_load();
  EXPECT_EQ(a.has_value(), b.has_value());
  if (!a || !b) return {};
  EXPECT_EQ(a->address, b->address);
  EXPECT_EQ(a->level, b->level);
  EXPECT_EQ(a->latency, b->latency);
  EXPECT_EQ(a->stlb_miss, b->stlb_miss);
  EXPECT_EQ(a->locked, b->locked);
  return a;
}

/// Both must have the same counts, and the same contents of caches and TLBs, seen by fetches and loads.
void expect_same(ProcessorModel& x, ProcessorModel& y, const std::string& of) {
  for (unsigned i = 0; i <= static_cast<unsigned>(Counts::offcore_1); ++i) {
    const auto counts = static_cast<Counts>(i);
    EXPECT_EQ(x.count(counts), y.count(counts)) << of << ' ' << i;
  }
  for (std::uint64_t line = 0; line < (16 << 10); line += 64) {
    Retirement a{.has_load = true}, b{.has_load = true};
    for (auto [model, retirement] : {std::pair{&x, &a}, std::pair{&y, &b}}) {
      model->begin_instruction();
      model->fetched({.linear = line, .physical = line, .page_bytes = 4096});
      model->accessed({.linear = line * 67, .physical = line * 67, .page_bytes = 4096, .bytes = 1},
                      line + (1ULL << 40));
      model->retired(true, false);
      model->complete(*retirement);
    }
    EXPECT_EQ(a.frontend.dsb_miss, b.frontend.dsb_miss) << of << ' ' << line;
    EXPECT_EQ(a.frontend.l1i_miss, b.frontend.l1i_miss) << of << ' ' << line;
    EXPECT_EQ(a.load.latency, b.load.latency) << of << ' ' << line;
  }
}

// The fast path for accesses that hit everywhere gives the same results.
TEST(ProcessorModels, CountTheSameManyAtOnce) {
  std::mt19937_64 random{3};
  for (const Profile& profile : all_profiles()) {
    const std::vector<Seen> trace = random_trace(random, 20'000);
    ProcessorModel at_once{profile}, one_by_one{profile};
    for (ProcessorModel* const model : {&at_once, &one_by_one}) model->follow(plan_of_last_load());
    unsigned locked = 0;
    for (std::span<const Seen> rest{trace}; !rest.empty();) {
      const auto part = rest.first(std::min<std::size_t>(rest.size(), 1 + random() % 4));
      rest = rest.subspan(part.size());
      at_once.saw(part);
      tell(part, one_by_one);
      const auto last = expect_same_last_load(at_once, one_by_one);
      locked += last && last->locked ? 1 : 0;
    }
    EXPECT_GT(locked, 100U);
    expect_same(at_once, one_by_one, std::string{profile.name});
    EXPECT_GT(at_once.count(Counts::l1_hit), 1000U);
    EXPECT_GT(at_once.count(Counts::l3_miss), 100U);
  }
}

/// Runs of random blocks as a program has them, with some seldom accesses.
struct RandomBlocks {
  explicit RandomBlocks(std::mt19937_64& random) : random_{random} {
    for (unsigned n = 0; n < 60; ++n) {
      // Half of the blocks are in the crowded set of the L1.
      const std::uint64_t rip = n % 2 == 0 ? below(24 << 10) : n * page_size + crowded_line * 64;
      SeenBlock b{.rip = rip, .instructions = static_cast<std::uint32_t>(2 + below(8))};
      constexpr std::array kinds{BranchKind::none, BranchKind::conditional, BranchKind::near_rel_call,
                                 BranchKind::near_ret, BranchKind::near_ind_jmp};
      b.branch = {.at = b.rip + 10, .fall_through = b.rip + 12, .kind = kinds[n % kinds.size()]};
      std::vector<SeenCode>& lines = lines_.emplace_back();
      for (std::uint64_t line = b.rip & ~63ULL; line < b.rip + 12; line += 64)
        lines.push_back({.linear = line, .physical = line + (1 << 20), .page_bytes = 4096});
      b.lines = lines;
      std::vector<BlockAccess>& accesses = accesses_.emplace_back();
      for (std::uint32_t i = 0; i < b.instructions; ++i) add_access(accesses, static_cast<std::uint8_t>(i));
      b.accesses = accesses;
      blocks_.push_back(b);
    }
    remap();
  }
  void remap() {
    for (SeenPage& p : pages_)
      p = {.physical = below(1 << 12) * page_size,
           .page_bytes = below(4) != 0 ? static_cast<std::uint32_t>(page_size) : 2U << 20U,
           .global = below(4) == 0};
  }
  SeenBlocks next(SeenBlocks before) {
    run_.clear();
    addresses_.clear();
    for (unsigned n = 0; n < 100; ++n) {
      const SeenBlock& b = blocks_[below(4) != 0 ? n % 4 : below(blocks_.size())];
      run_.push_back(&b);
      for (const BlockAccess& a : b.accesses) {
        // More pages than a set of the first-level TLB has ways, with a few lines of each.
        const std::uint64_t page = below(60) != 0 ? std::min(below(6), below(6)) : below(tlb_entries / 16);
        const std::uint64_t line = below(60) != 0 ? (page + 6 * below(3)) * 64 : below(page_size - 64);
        const std::uint64_t at = page * 16 * page_size + line + (below(10) != 0 ? below(64 - a.bytes) : 60);
        // Some accesses to more lines of one L1 set than it has ways.
        addresses_.push_back(below(4) != 0 ? at : std::min(below(12), below(12)) * page_size + crowded_line * 64);
      }
    }
    before.blocks = run_;
    before.addresses = addresses_;
    return before;
  }
  SeenBlocks first() { return {.blocks = {}, .addresses = {}, .pages = pages_, .line = ~0ULL}; }

 private:
  static constexpr std::uint64_t crowded_line = 40;
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void add_access(std::vector<BlockAccess>& accesses, std::uint8_t i) {
    const auto add = [&](unsigned flags, bool both) {
      accesses.push_back({.instruction = i, .flags = static_cast<std::uint8_t>(flags), .both = both, .bytes = 8});
    };
    switch (below(8)) {
      case 0: return add(Seen::store | Seen::retires | Seen::op_stores, false);
      case 1: return add(Seen::store | Seen::retires | Seen::op_loads | Seen::op_stores, true);
      case 2:  // a call by an address in memory
        add(0, false);
        return add(Seen::store | Seen::retires | Seen::op_loads | Seen::op_stores, false);
      case 3:
      case 4:
      case 5: return add(Seen::retires | Seen::op_loads, false);
      default: return;
    }
  }

  std::mt19937_64& random_;
  std::deque<std::vector<SeenCode>> lines_;  // of the blocks, which refer to them
  std::deque<std::vector<BlockAccess>> accesses_;
  std::vector<SeenBlock> blocks_;
  std::array<SeenPage, tlb_entries> pages_{};
  std::vector<const SeenBlock*> run_;
  std::vector<std::uint64_t> addresses_;
};

// The same for whole blocks, with flushes and remapping between them.
TEST(ProcessorModels, CountTheSameByBlocks) {
  std::mt19937_64 random{4};
  for (const Profile& profile : all_profiles()) {
    RandomBlocks blocks{random};
    ProcessorModel by_blocks{profile}, one_by_one{profile};
    for (ProcessorModel* const model : {&by_blocks, &one_by_one}) model->follow(plan_of_last_load());
    unsigned last_loads = 0;
    SeenBlocks a = blocks.first(), b = a;
    for (unsigned n = 0; n < 300; ++n) {
      a = b = blocks.next(a);
      by_blocks.saw_blocks(a);
      tell(b, one_by_one);
      EXPECT_EQ(a.now, b.now);
      EXPECT_EQ(a.line, b.line);
      EXPECT_EQ(a.branch.at, b.branch.at);
      last_loads += expect_same_last_load(by_blocks, one_by_one) ? 1 : 0;
      const auto happens = random() % 32;
      for (ProcessorModel* const model : {&by_blocks, &one_by_one}) {
        if (happens == 0) model->flushed({});
        if (happens == 1) model->flushed_line({.linear = 64, .physical = a.pages[0].physical + 64});
        if (happens == 2) model->caches_flushed();
        if (happens == 3) model->remapped();
      }
      if (happens == 3) blocks.remap();
    }
    EXPECT_GT(last_loads, 100U);
    EXPECT_GT(by_blocks.count(Counts::l1_hit), 10'000U);
    EXPECT_GT(by_blocks.count(Counts::l3_miss), 100U);
    EXPECT_GT(by_blocks.count(Counts::mispredicts), 100U);
    EXPECT_GT(by_blocks.count(Counts::dtlb_miss_loads), 100U);
    expect_same(by_blocks, one_by_one, std::string{profile.name});
  }
}

/// The whole state of a model, including its clock.
std::vector<std::byte> state_of(ProcessorModel& model, std::uint64_t now) {
  std::vector<std::byte> all;
  model.visit_state([&](std::span<std::byte> part) { all.insert(all.end(), part.begin(), part.end()); }, now);
  return all;
}

/// Two models must have kept the same branches.
void expect_same_kept(ProcessorModel& x, ProcessorModel& y, std::uint64_t now) {
  const BranchRun a = x.kept_branches(now), b = y.kept_branches(now);
  EXPECT_EQ(a.missing, b.missing);
  EXPECT_EQ(a.cycles_behind, b.cycles_behind);
  ASSERT_EQ(a.branches.size(), b.branches.size());
  for (std::size_t n = 0; n < a.branches.size(); ++n) {
    const TakenBranch &of_a = a.branches[n].branch, &of_b = b.branches[n].branch;
    EXPECT_EQ(of_a.from, of_b.from) << n;
    EXPECT_EQ(of_a.to, of_b.to) << n;
    EXPECT_EQ(of_a.cpl, of_b.cpl) << n;
    EXPECT_EQ(of_a.what.kind, of_b.what.kind) << n;
    EXPECT_EQ(of_a.what.taken, of_b.what.taken) << n;
    EXPECT_EQ(of_a.what.mispredicted, of_b.what.mispredicted) << n;
    EXPECT_EQ(of_a.what.to_next, of_b.what.to_next) << n;
    EXPECT_EQ(a.branches[n].cycles, b.branches[n].cycles) << n;
  }
}

// Branches of whole blocks are kept as those reported one by one, with caches and without, and the clock, which
// mispredictions advance, is the same.
TEST(ProcessorModels, KeepTheSameBranchesByBlocks) {
  constexpr std::uint8_t all_kinds = 0xFF, but_jumps = 0x1E, but_conditional = 0xFC;
  std::mt19937_64 random{5};
  RandomBlocks blocks{random};
  for (const bool with_memory : {true, false})
    for (const bool call_stack : {true, false})
      for (const std::uint8_t kinds : {all_kinds, but_jumps, but_conditional, std::uint8_t{0}}) {
        ProcessorModel by_blocks{*find_profile("haswell")}, one_by_one{*find_profile("haswell")};
        CountPlan plan{.size = 1, .branches_wanted = true};
        plan.entries[0] = {.counts = with_memory ? Counts::l1_hit : Counts::branches};
        by_blocks.follow(plan);
        one_by_one.follow(plan);
        SeenBlocks a = blocks.first(), b = a;
        std::size_t kept = 0;
        for (unsigned n = 0; n < 60; ++n) {
          const LbrFilter filter{.kinds = {kinds, 0}, .depth = 16, .call_stack = call_stack};
          for (ProcessorModel* const model : {&by_blocks, &one_by_one}) model->keep_branches(0, filter, a.now);
          for (auto runs = random() % 4; runs > 0; --runs) {
            a = b = blocks.next(a);
            by_blocks.saw_blocks(a);
            tell(b, one_by_one);
          }
          const std::uint64_t end = a.now + random() % 5;
          expect_same_kept(by_blocks, one_by_one, end);
          kept += by_blocks.kept_branches(end).branches.size();
        }
        EXPECT_EQ(kept > 100, kinds != 0) << kept;
        EXPECT_TRUE(state_of(by_blocks, a.now) == state_of(one_by_one, a.now));
        expect_same(by_blocks, one_by_one, with_memory ? "with memory" : "only branches");
      }
}

}  // namespace
}  // namespace vpmu::uarch::test
