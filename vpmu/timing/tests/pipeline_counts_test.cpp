#include <gtest/gtest.h>

#include "any_blocks.hpp"

namespace vpmu::timing {
namespace {

using namespace test;
using Q = PipelineQuantity;

constexpr unsigned runs = 4000;

/// What many runs of the code counted.
PipelineCounts counts(Assembled code, const BlockRun& how, const std::vector<TimedAccess>& accesses = {},
                      const Microarchitecture& on = skylake) {
  const auto instructions = timed_block(std::as_bytes(code), on);
  EXPECT_TRUE(instructions);
  if (!instructions) return {};
  Pipeline pipeline{on};
  const TimedBlockPtr block = make_block(*instructions, 0, on);
  for (unsigned times = 0; times < runs; ++times) pipeline.retire(block, accesses, how);
  return pipeline.counts();
}

/// Of each run.
double each(std::uint64_t count) { return static_cast<double>(count) / runs; }
#define EXPECT_EACH(count, expected) EXPECT_NEAR(each(count), expected, 0.05 * (expected) + 0.01)

constexpr BlockRun cached{.taken = true, .decoded = true}, decoded_anew{.taken = true};
constexpr BlockRun mispredicted{.mispredicted = true, .taken = true, .decoded = true};

// The issue slots are told apart as they pass; only those since the last micro-op was issued are left over.
TEST(PipelineCounts, EachIssueSlotIsOfOneKind) {
  for (const Microarchitecture* const on : {&ivy_bridge, &haswell, &skylake}) {
    AnyBlocks any{*on};
    Pipeline pipeline{*on};
    std::uint64_t micro_ops{};
    for (unsigned block = 0; block < 3000; ++block) {
      const TimedBlockPtr made = make_block(any.code(), any.random(), *on);
      pipeline.retire(made, any.accesses(made->accesses().size()), any.run());
      micro_ops += made->micro_ops;
      if (block % 100 != 99) continue;
      const PipelineCounts c = pipeline.counts();
      const TopDown slots = top_down(c, *on);
      const std::uint64_t all = 4 * c.totals.cycles;
      ASSERT_EQ(slots.retiring + slots.bad_speculation + slots.front_end + slots.back_end, all);
      ASSERT_EQ(slots.retiring, micro_ops);
      ASSERT_LE(slots.back_end, all) << "none is told twice";
      const std::uint64_t stalled = 4 * c.totals[Q::resource_stall].sum;
      ASSERT_LE(stalled, slots.back_end + 8);
      ASSERT_LE(slots.back_end - std::min(stalled, slots.back_end), 4 * 3000U) << "what is in flight, " << all;
    }
    EXPECT_GT(pipeline.counts().totals.cycles, 100'000);
  }
}

TEST(PipelineCounts, EachNumberOnlyGrowsAndNoneIsMoreThanTheCycles) {
  AnyBlocks any{haswell};
  Pipeline pipeline{haswell};
  PipelineTotals before;
  for (unsigned block = 0; block < 500; ++block) {
    const TimedBlockPtr made = make_block(any.code(), any.random(), haswell);
    pipeline.retire(made, any.accesses(made->accesses().size()), any.run());
    const PipelineTotals now = pipeline.counts().totals;
    ASSERT_GE(now.cycles, before.cycles);
    for (unsigned q = 0; q < pipeline_quantity_count; ++q) {
      const PipelineTotal &a = before.quantities.at(q), &b = now.quantities.at(q);
      ASSERT_GE(b.sum, a.sum) << q;
      ASSERT_GE(b.beginnings, a.beginnings) << q;
      for (unsigned n = 0; n < PipelineTotal::max_threshold; ++n) {
        ASSERT_GE(b.at_least.at(n), a.at_least.at(n)) << q;
        ASSERT_LE(b.at_least.at(n), now.cycles) << q << ' ' << n;
      }
    }
    before = now;
  }
  EXPECT_GT(before[Q::executed].sum, 1000U);
}

TEST(PipelineCounts, TheSlotsSayWhatHoldsUpAProgram) {
  const auto share = [](std::uint64_t slots, const PipelineCounts& c) {
    return static_cast<double>(slots) / (4 * static_cast<double>(c.totals.cycles));
  };
  const PipelineCounts adds = counts(X86("add $1, %rax; add $1, %rbx; add $1, %rcx; add $1, %rdx"), cached);
  EXPECT_GT(share(top_down(adds, skylake).retiring, adds), 0.95);

  BlockRun far_away = decoded_anew;
  far_away.fetch_wait = 12;
  const PipelineCounts large = counts(X86("add $1, %rax; add $1, %rbx; add $1, %rcx; 1: jmp 1b"), far_away);
  EXPECT_GT(share(top_down(large, skylake).front_end, large), 0.85);
  EXPECT_NEAR(share(4 * large.totals[Q::not_delivered].at_least[3], large), 12. / 13, 0.1);

  const PipelineCounts guesses = counts(X86("add $1, %rax; test %rbx, %rbx; 1: jne 1b"), mispredicted);
  EXPECT_GT(share(top_down(guesses, skylake).bad_speculation, guesses), 0.8);

  const std::vector miss{TimedAccess{.physical = 0, .bytes = 8, .late = 200, .level = HitLevel::dram}};
  const PipelineCounts chase = counts(X86("mov (%rax), %rax"), cached, miss);
  EXPECT_GT(share(top_down(chase, skylake).back_end, chase), 0.95);
  for (const Q stall : {Q::load_stall, Q::l1d_miss_stall, Q::l2_miss_stall, Q::l3_miss_stall})
    EXPECT_NEAR(share(4 * chase.totals[stall].sum, chase), 0.98, 0.03);

  const PipelineCounts divisions = counts(X86("movaps %xmm2, %xmm0; divsd %xmm1, %xmm0"), cached);
  EXPECT_GT(share(top_down(divisions, skylake).back_end, divisions), 0.8);
  EXPECT_GT(share(4 * divisions.totals[Q::dividing].sum, divisions), 0.95);
  EXPECT_EQ(divisions.totals[Q::load_stall].sum, 0U);
}

// An addition with a load is one fused micro-op and two by themselves, a no-op one of each. 248966, micro-fusion.
TEST(PipelineCounts, SlotsAndMicroOpsRetire) {
  const PipelineCounts c = counts(X86("add 8(%rbx), %rax; nop; nop; nop; nop"), cached, {at(0)});
  EXPECT_EACH(c.totals[Q::retired].sum, 5);
  EXPECT_EACH(c.totals[Q::retired_unfused].sum, 6);
  EXPECT_EQ(c.totals[Q::retired].sum, c.retired_slots);
  EXPECT_EACH(c.totals[Q::retired].at_least[3], 1.25);
  EXPECT_EQ(c.totals[Q::retired].at_least[4], 0U);
  EXPECT_EACH(c.totals[Q::retired_unfused].at_least[4], 1);
  const PipelineCounts chain = counts(X86("imul %rax, %rax"), cached);
  EXPECT_EACH(chain.totals[Q::retired].at_least[0], 0.25);
  EXPECT_EACH(chain.totals[Q::retired].beginnings, 1);
}

TEST(PipelineCounts, AMispredictedBranchIsRecoveredFromWhileTheFrontEndBeginsAnew) {
  const PipelineCounts c = counts(X86("test %rax, %rax; 1: jne 1b"), mispredicted);
  EXPECT_EACH(c.totals[Q::recovery].sum, skylake.refill - skylake.issue_to_dispatch);
  EXPECT_EQ(c.totals[Q::recovery].beginnings, runs);
  EXPECT_EACH(c.totals[Q::scheduler_empty].sum, skylake.refill - skylake.issue_to_dispatch);
  // From when the branch is issued until it has executed the front end gives others: an estimate.
  EXPECT_EACH(c.wrong_path_slots, 4 * (skylake.issue_to_dispatch + 1));
  EXPECT_EACH(c.totals[Q::issued].sum, 1 + 4 * (skylake.issue_to_dispatch + 1));
}

TEST(PipelineCounts, CyclesAreToldApartByHowMuchBegins) {
  const PipelineCounts chain = counts(X86("add %rax, %rax"), cached);
  const PipelineCounts wide = counts(X86("add $1, %rax; add $1, %rbx; add $1, %rcx; add $1, %rdx"), cached);
  for (const Q q : {Q::issued, Q::executed}) {
    EXPECT_EACH(wide.totals[q].at_least[0], 1);
    EXPECT_EACH(wide.totals[q].at_least[3], 1);
    EXPECT_EQ(wide.totals[q].at_least[4], 0U);
  }
  EXPECT_EACH(chain.totals[Q::executed].at_least[0], 1);
  EXPECT_EACH(chain.totals[Q::executed].at_least[1], 0);
  const PipelineCounts division = counts(X86("imul %rax, %rax"), cached);
  EXPECT_EACH(division.totals[Q::executed].at_least[0], 1);
  EXPECT_EACH(division.totals[Q::scheduler_waits].sum, 2);
}

// Some numbers are kept in 32 bits for a while.
TEST(PipelineCounts, NumbersAreNotLostWhenTheyAreLarge) {
  constexpr std::uint64_t many = 3'000'000;
  const auto instructions = timed_block(std::as_bytes(Assembled{X86("idiv %rcx")}), skylake);
  ASSERT_TRUE(instructions);
  const TimedBlockPtr block = make_block(*instructions, 0, skylake);
  ASSERT_GT(block->divider * many, std::uint64_t{1} << 32);
  Pipeline pipeline{skylake};
  for (std::uint64_t times = 0; times < many; ++times) pipeline.retire(block, {}, cached);
  EXPECT_EQ(pipeline.counts().totals[Q::dividing].sum, block->divider / cycle * many);
  EXPECT_EQ(pipeline.counts().totals[Q::divider_uops].sum, many);
}

TEST(PipelineCounts, PortsShareWhatMayGoToEachOfThem) {
  const PipelineCounts c =
      counts(X86("add $1, %rax; mov (%r8), %rcx; mov %rdx, (%r8); imul $3, %rbx, %rsi"), cached, {at(0), at(64)});
  EXPECT_EACH(c.totals[Q::executed].sum, 5);
  const std::array<double, 8> expected{0.25, 1.25, 0.5 + 1. / 3, 0.5 + 1. / 3, 1, 0.25, 0.25, 1. / 3};
  std::uint64_t all{};
  for (unsigned port = 0; port < expected.size(); ++port) {
    const std::uint64_t there = c.totals.quantities.at(static_cast<unsigned>(Q::port_0) + port).sum;
    EXPECT_EACH(there, expected.at(port));
    all += there;
  }
  EXPECT_EQ(all, c.totals[Q::executed].sum);
  const PipelineCounts pair = counts(X86("cmp %rax, %rbx; 1: jne 1b"), cached);
  EXPECT_EACH(pair.totals[Q::port_6].sum, 0.5);
  EXPECT_EACH(pair.totals[Q::port_0].sum, 0.5);
  EXPECT_EQ(pair.totals[Q::port_1].sum, 0U);
}

TEST(PipelineCounts, MicroOpsAreOfWhereTheyCameFrom) {
  const Assembled code = X86("add $0x1234, %ax; mov %ebx, %ecx; div %ecx");
  const PipelineCounts lines = counts(code, cached), decoders = counts(code, decoded_anew);
  EXPECT_EACH(lines.totals[Q::from_dsb].sum, 2);
  EXPECT_EACH(lines.totals[Q::microcode_from_dsb].sum, 10);
  EXPECT_EQ(lines.totals[Q::from_mite].sum + lines.totals[Q::prefix_stall].sum, 0U);
  EXPECT_EACH(decoders.totals[Q::from_mite].sum, 2);
  EXPECT_EACH(decoders.totals[Q::microcode_from_mite].sum, 10);
  EXPECT_EACH(decoders.totals[Q::prefix_stall].sum, 3);
  EXPECT_EQ(decoders.totals[Q::prefix_stall].beginnings, runs);
  EXPECT_EQ(decoders.totals[Q::from_dsb].sum, 0U);
}

// 248966, legacy decode pipeline: 16 bytes a cycle.
TEST(PipelineCounts, WhatTheFrontEndDoesNotGiveIsCountedByHowMuchItIs) {
  const PipelineCounts c = counts(X86(".rept 4; .byte 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0; .endr\n"), decoded_anew);
  EXPECT_EACH(c.totals.cycles, 2);
  EXPECT_EACH(c.totals[Q::not_delivered].sum, 4);
  const std::array<double, 4> expected{2, 2, 0, 0};
  for (unsigned n = 0; n < expected.size(); ++n)
    EXPECT_EACH(c.totals[Q::not_delivered].at_least.at(n), expected.at(n)) << n;
  EXPECT_EACH(c.totals[Q::issued].at_least[1], 2);
  EXPECT_EACH(c.totals[Q::issued].at_least[2], 0);
}

TEST(PipelineCounts, LoadsThatStoresHoldUpAreCounted) {
  const PipelineCounts blocked = counts(X86("mov %al, (%r8); mov (%r8), %rbx"), cached, {at(0, 1), at(0)});
  EXPECT_EQ(blocked.totals[Q::blocked_forwards].sum, runs);
  EXPECT_EQ(blocked.totals[Q::aliased_loads].sum, 0U);
  const PipelineCounts aliased = counts(X86("mov %rbx, (%r8); mov (%rax), %rax"), cached, {at(0), at(4096)});
  EXPECT_EQ(aliased.totals[Q::aliased_loads].sum, runs);
  EXPECT_EQ(aliased.totals[Q::blocked_forwards].sum, 0U);
}

TEST(PipelineCounts, FullBuffersAreCounted) {
  const PipelineCounts stores = counts(X86("mov %rbx, (%r8)"), cached, {at(0, 8, 560)});
  EXPECT_EACH(stores.totals[Q::store_queue_full].sum, 10 - 0.25);
  EXPECT_EACH(stores.totals[Q::stores_hold_up].sum, 10 - 0.25);
  const std::vector late{at(0, 8, 300)};
  const PipelineCounts window = counts(X86("mov (%r8), %rax; .rept 19; lea 1(%rcx), %rbx; .endr\n"), cached, late);
  EXPECT_EACH(window.totals[Q::reorder_full].sum, 304. / 12 - 5);
  EXPECT_EACH(window.totals[Q::load_stall].sum, 304. / 12 - 5);
  EXPECT_EACH(window.totals[Q::loads_pending].sum, 300);
  EXPECT_EACH(window.totals[Q::loads_pending].at_least[0], 304. / 12);
  const PipelineCounts waiting = counts(X86("mov (%r8), %rax; .rept 19; lea 1(%rax), %rbx; .endr\n"), cached, late);
  EXPECT_GT(each(waiting.totals[Q::scheduler_full].sum), 50);
}

/// Lines that come from memory, one for each access and nothing with it.
TimedAccess from_memory(std::uint32_t number, std::uint16_t late, std::uint16_t walk = 0) {
  TimedAccess access{
      .physical = std::uint64_t{number} * 64, .bytes = 8, .late = late, .level = HitLevel::dram, .walk = walk};
  access.transfers.begin(number, uarch::Transfers::memory);
  return access;
}

/// What many runs of one instruction counted, each of whose accesses is another line.
PipelineCounts each_from_memory(Assembled code, std::uint16_t late, std::uint16_t walk, const Microarchitecture& on,
                                bool remember = true) {
  const auto instructions = timed_block(std::as_bytes(code), on);
  EXPECT_TRUE(instructions);
  Pipeline pipeline{on};
  pipeline.remember_states(remember);
  pipeline.transfers_take({.from = {0, 12, 40, static_cast<std::uint16_t>(late + 5)}, .channel = 0});
  const TimedBlockPtr block = make_block(*instructions, 0, on);
  for (unsigned times = 0; times < runs; ++times) {
    const std::array accesses{from_memory(times, late, walk)};
    pipeline.retire(block, accesses, cached);
  }
  return pipeline.counts();
}

// L1D_PEND_MISS and OFFCORE_REQUESTS_OUTSTANDING, by Little's law: lines under way, over all cycles, are how long each
// is under way; over the cycles with some they are how many are at a time.
TEST(PipelineCounts, LinesUnderWayAreTheirTime) {
  constexpr std::uint16_t late = 200;
  const PipelineCounts chase = each_from_memory(X86("mov (%rax), %rax"), late, 0, haswell);
  EXPECT_EACH(chase.totals[Q::l1d_lines_pending].sum, late);
  EXPECT_EQ(chase.totals[Q::l1d_lines_pending].at_least[0], chase.totals[Q::l1d_lines_pending].sum) << "one at a time";
  EXPECT_EACH(chase.totals[Q::l1d_lines_pending].beginnings, 1);
  EXPECT_EACH(chase.totals[Q::demand_reads_outstanding].sum, late + 5 - 12);
  EXPECT_EQ(chase.totals[Q::reads_outstanding].sum, chase.totals[Q::demand_reads_outstanding].sum);
  EXPECT_EQ(chase.totals[Q::memory_reads_outstanding].sum, chase.totals[Q::demand_reads_outstanding].sum);
  EXPECT_EQ(chase.totals[Q::rfos_outstanding].sum, 0U);
  EXPECT_EQ(chase.totals[Q::fill_buffers_full].sum, 0U);

  const PipelineCounts stream = each_from_memory(X86("mov (%rbx), %rax"), late, 0, haswell);
  const PipelineTotal& pending = stream.totals[Q::l1d_lines_pending];
  EXPECT_EACH(pending.sum, late);
  EXPECT_NEAR(static_cast<double>(pending.sum) / static_cast<double>(pending.at_least[0]), haswell.fill_buffers, 0.5);
  EXPECT_GT(pending.at_least[7] * 10, pending.at_least[0] * 9) << "nearly always eight and more";
  EXPECT_GT(stream.totals[Q::fill_buffers_full].sum * 10, stream.totals.cycles * 9);

  const PipelineCounts stores = each_from_memory(X86("mov %rax, (%rbx)"), late, 0, haswell);
  EXPECT_EACH(stores.totals[Q::rfos_outstanding].sum, late - 12);
  EXPECT_EQ(stores.totals[Q::l1d_lines_pending].sum + stores.totals[Q::reads_outstanding].sum, 0U);
}

// WALK_DURATION: one walk at a time up to Haswell, two from Broadwell on.
TEST(PipelineCounts, PageWalksTakeTurns) {
  constexpr std::uint16_t walk = 50;
  for (const auto& [on, walkers] : {std::pair{&haswell, 1U}, {&broadwell, 2U}, {&skylake, 2U}}) {
    const PipelineCounts c = each_from_memory(X86("mov (%rbx), %rax"), 55, walk, *on);
    const PipelineTotal& walks = c.totals[Q::load_walks];
    EXPECT_EACH(walks.sum, walk);
    EXPECT_EACH(walks.at_least[0], static_cast<double>(walk) / walkers);
    EXPECT_EACH(c.totals.cycles, static_cast<double>(walk) / walkers);
    EXPECT_EQ(walks.at_least[walkers], 0U);
    EXPECT_EACH(each_from_memory(X86("mov %rax, (%rbx)"), 55, walk, *on).totals[Q::store_walks].sum, walk);
  }
  const PipelineCounts none = each_from_memory(X86("mov (%rbx), %rax"), 55, 0, haswell);
  EXPECT_EQ(none.totals[Q::load_walks].sum + none.totals[Q::store_walks].sum + none.totals[Q::code_walks].sum, 0U);
}

TEST(PipelineCounts, WaitingForCodeIsToldByItsReason) {
  BlockRun far_away = decoded_anew;
  far_away.fetch_wait = 60;
  far_away.code_walk = 20;
  far_away.code_read = 40;
  const PipelineCounts c = counts(X86("nop"), far_away);
  EXPECT_EACH(c.totals[Q::code_walks].sum, 20);
  EXPECT_EACH(c.totals[Q::code_walks].beginnings, 1);
  EXPECT_EACH(c.totals[Q::code_reads_outstanding].sum, 40);
  EXPECT_LE(c.totals[Q::code_reads_outstanding].sum, c.totals.cycles);
}

// They are counted as they begin, also in a run that is repeated.
TEST(PipelineCounts, StatesThatComeAgainCountTheSameLines) {
  for (const std::uint16_t walk : std::to_array<std::uint16_t>({0, 30}))
    for (const char* const which : {"chase", "stream", "store"}) {
      const Assembled code = which[1] == 'h'   ? X86("mov (%rax), %rax; 1: jmp 1b")
                             : which[2] == 'r' ? X86("mov (%rbx), %rax; 1: jmp 1b")
                                               : X86("mov %rax, (%rbx); 1: jmp 1b");
      const PipelineCounts a = each_from_memory(code, 200, walk, skylake),
                           b = each_from_memory(code, 200, walk, skylake, false);
      EXPECT_EQ(a.totals, b.totals) << which << ' ' << walk;
    }
}

TEST(PipelineCounts, CountingChangesNoTime) {
  AnyBlocks any{skylake};
  Pipeline a{skylake}, b{skylake};
  b.count(false);
  for (unsigned block = 0; block < 300; ++block) {
    const TimedBlockPtr made = make_block(any.code(), any.random(), skylake);
    const auto accesses = any.accesses(made->accesses().size());
    const BlockRun how = any.run();
    a.retire(made, accesses, how);
    b.retire(made, accesses, how);
    ASSERT_EQ(a.now(), b.now());
  }
  EXPECT_EQ(b.counts().retired_slots, 0U);
  EXPECT_GT(a.counts().retired_slots, 1000U);
}

}  // namespace
}  // namespace vpmu::timing
