#include "timing/pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "any_blocks.hpp"

namespace vpmu::timing {
namespace {

using namespace test;

/// Cycles of one copy of the code, of many that follow each other.
double cycles(Assembled code, const Microarchitecture& on = skylake, const std::vector<TimedAccess>& accesses = {},
              const BlockRun& how = {}) {
  constexpr unsigned warm_up = 200, measured = 800;
  const auto instructions = timed_block(std::as_bytes(code), on);
  if (!instructions) return -1;
  Pipeline pipeline{on};
  pipeline.transfers_take({.from = {0, 12, 44, 200}, .channel = 5});
  Time warm{};
  for (unsigned copy = 0; copy < warm_up + measured; ++copy) {
    if (copy == warm_up) warm = pipeline.now();
    pipeline.retire(make_block(*instructions, copy * code.size(), on), accesses, how);
  }
  return static_cast<double>(pipeline.now() - warm) / cycle / measured;
}

// Each within 5 % of the manual's figure.
#define EXPECT_CYCLES(expected, ...) EXPECT_NEAR(cycles(__VA_ARGS__), expected, 0.05 * (expected))

TEST(Pipeline, DependentInstructionsTakeTheirLatency) {
  EXPECT_CYCLES(1, X86("add %rax, %rax"));
  EXPECT_CYCLES(3, X86("imul %rax, %rax"));
  EXPECT_CYCLES(4, X86("addsd %xmm0, %xmm0"));
  EXPECT_CYCLES(3, X86("addsd %xmm0, %xmm0"), haswell);
  EXPECT_CYCLES(4, X86("mov (%rax), %rax"), skylake, {at(0)});
  EXPECT_CYCLES(5, X86("mov (%rax,%rcx), %rax"), skylake, {at(0)});
  EXPECT_CYCLES(26, X86("div %ecx"));
}

TEST(Pipeline, IndependentOnesTakeTheirPorts) {
  EXPECT_CYCLES(1, X86("add $1, %rax; add $1, %rbx; add $1, %rcx; add $1, %rdx"));
  EXPECT_CYCLES(4. / 3, X86("add $1, %rax; add $1, %rbx; add $1, %rcx; add $1, %rdx"), ivy_bridge);
  EXPECT_CYCLES(2, X86("imul $3, %r8, %rax; imul $3, %r8, %rbx")) << "port 1 alone multiplies";
  EXPECT_CYCLES(1, X86("mov (%r8), %rax; mov (%r8), %rbx"), skylake, {at(0), at(64)}) << "two loads a cycle";
  EXPECT_CYCLES(2, X86("mov (%r8), %rax; mov (%r8), %rbx"), nehalem, {at(0), at(64)}) << "one load a cycle";
  EXPECT_CYCLES(2, X86("mov %rax, (%r8); mov %rbx, (%r8)"), skylake, {at(0), at(64)}) << "one store a cycle";
}

TEST(Pipeline, IdiomsTakeOnlyIssueWidth) {
  EXPECT_CYCLES(1, X86("xor %eax, %eax; xor %ebx, %ebx; xor %ecx, %ecx; xor %edx, %edx"));
  EXPECT_CYCLES(1, X86("imul %rax, %rax; xor %eax, %eax")) << "a new chain begins";
  EXPECT_CYCLES(1, X86("add %rax, %rbx; mov %rbx, %rax")) << "the move has no latency";
}

/// An access that the L1 lacks. Its line, which is on its way from memory, has that number; one more from memory comes
/// with it.
TimedAccess from_memory(std::uint32_t number) {
  TimedAccess access{.physical = 0x1'0000, .bytes = 8, .late = 196, .level = HitLevel::dram};
  access.transfers.begin(number, uarch::Transfers::memory);
  access.transfers.begin(number + 1, uarch::Transfers::memory);
  return access;
}
/// One that finds its line in the L2, or will.
TimedAccess from_l2(std::uint32_t awaited) {
  TimedAccess access{.physical = 0x2'0000, .bytes = 8, .late = 8, .level = HitLevel::l2};
  access.transfers.wait_for(uarch::Transfers::name(awaited));
  return access;
}

TEST(Pipeline, ALoadWaitsForALineThatIsOnItsWay) {
  const auto both = [](const TimedAccess& first, const TimedAccess& second) { return std::vector{first, second}; };
  EXPECT_CYCLES(212, X86("mov (%rax), %rax; mov (%rax), %rax"), skylake, both(from_memory(1), from_l2(1)))
      << "when the second one begins, its line is there";
  EXPECT_CYCLES(206, X86("mov (%rax), %rcx; mov (%rax), %rbx; and %rbx, %rax"), skylake,
                both(from_memory(1), from_l2(2)))
      << "they begin at the same time; the line of the second comes behind that of the first";
  EXPECT_CYCLES(13, X86("mov (%r8), %rcx; mov (%rax), %rbx; and %rbx, %rax"), skylake, both(at(0), from_l2(3)))
      << "it came long ago";
}

// 64 bytes take their time on memory's channels, however many lines are on their way.
TEST(Pipeline, LinesFromMemoryComeOneAfterTheOther) {
  constexpr unsigned lines = 400;
  const auto code = X86("mov (%r8), %rax");
  const auto instructions = timed_block(std::as_bytes(code), skylake);
  ASSERT_TRUE(instructions);
  for (const unsigned channel : {5U, 50U}) {
    Pipeline pipeline{skylake};
    pipeline.transfers_take({.from = {0, 12, 44, 200}, .channel = static_cast<std::uint16_t>(channel)});
    for (std::uint32_t n = 0; n < lines; ++n) {
      TimedAccess access{.physical = std::uint64_t{n} * 64, .bytes = 8, .late = 196, .level = HitLevel::dram};
      access.transfers.begin(n, uarch::Transfers::memory);
      pipeline.retire(make_block(*instructions, n * code.size(), skylake), {&access, 1});
    }
    // The ten fill buffers let one through in each twenty cycles.
    const double each = static_cast<double>(pipeline.now()) / cycle / lines;
    EXPECT_NEAR(each, std::max(20U, channel), 0.5) << channel;
  }
}

// Retirement is in order: a store that follows a load that waits for another store goes to the L1 behind that, however
// the code is cut into blocks. 248966, store forwarding.
TEST(Pipeline, StoresRetireBehindTheLoadsBeforeThem) {
  const std::vector<TimedAccess> once{at(2, 1), at(2, 1), at(0)};
  std::vector<TimedAccess> four_times;
  for (unsigned n = 0; n < 4; ++n) four_times.insert(four_times.end(), once.begin(), once.end());
  const double alone = cycles(X86("orb $1, 2(%rbx); mov (%rbx), %rcx"), ivy_bridge, once);
  EXPECT_GE(alone, ivy_bridge.blocked_load);
  EXPECT_NEAR(cycles(X86(".rept 4; orb $1, 2(%rbx); mov (%rbx), %rcx; .endr"), ivy_bridge, four_times), 4 * alone,
              2 * alone);
}

// 248966, legacy decode pipeline: three cycles for a prefix that changes the length; sixteen bytes of code a cycle, and
// at most five instructions of them; one decoder for what is not simple.
TEST(Pipeline, TheFrontEndLimits) {
  EXPECT_CYCLES(3.5, X86("add $0x1234, %ax; mov %ebx, %ecx"));
  EXPECT_CYCLES(1.25, X86("add %r8, %rax; add %r8, %rbx; add %r8, %rcx; add %r8, %rdx")) << "three bytes each";
  EXPECT_CYCLES(
      1.875,
      X86("movabs $0x123456789abcdef0, %rax; movabs $0x123456789abcdef0, %rbx; movabs $0x123456789abcdef0, %rcx"));
  EXPECT_CYCLES(3, X86("xchg %rax, %rbx; xchg %rcx, %rdx; xchg %rsi, %rdi"))
      << "nine micro-ops, but three decode groups";
}

// 248966, decoded ICache, and uiCA: six micro-ops of 32 bytes make a line; it has no prefixes, and no lengths to find.
TEST(Pipeline, TheMicroOpCacheGivesLines) {
  constexpr BlockRun decoded{.decoded = true};
  const Assembled long_ones = X86("1: .rept 4; .byte 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0; .endr\n");
  EXPECT_CYCLES(2, long_ones) << "16 bytes a cycle";
  EXPECT_CYCLES(1, long_ones, skylake, {}, decoded);
  EXPECT_CYCLES(1, X86("add $0x1234, %ax; mov %ebx, %ecx"), skylake, {}, decoded);
  EXPECT_CYCLES(0.75, X86("xor %eax, %eax; xor %ebx, %ebx; xor %ecx, %ecx"), skylake, {}, decoded)
      << "as wide as issue is";
  const Assembled constants =
      X86("movabs $0x123456789abcdef0, %rax; movabs $0x123456789abcdef0, %rbx; movabs $0x123456789abcdef0, %rcx");
  // A line, two cycles to the sequencer, and ten micro-ops of microcode, four a cycle; two lines more.
  EXPECT_CYCLES(6.5, X86("xor %edx, %edx; mov %ebx, %eax; div %ecx"), skylake, {}, decoded);
  EXPECT_CYCLES(3, constants, skylake, {}, decoded) << "a cycle for each that takes two places";
}

TEST(Pipeline, ATakenBranchEndsALine) {
  EXPECT_CYCLES(0.25, X86("nop"), skylake, {}, {.decoded = true});
  EXPECT_CYCLES(0.5, X86("nop"), skylake, {}, {.taken = true, .decoded = true}) << "two lines a cycle";
}

TEST(Pipeline, CodeThatNeedsTooManyLinesDoesNotFitTheMicroOpCache) {
  const auto fits = [](Assembled code, std::uint64_t rip = 0) {
    const auto instructions = timed_block(std::as_bytes(code), skylake);
    EXPECT_TRUE(instructions);
    return make_block(*instructions, rip, skylake)->fits_cache;
  };
  EXPECT_TRUE(fits(X86(".rept 18; nop; .endr\n")));
  EXPECT_FALSE(fits(X86(".rept 19; nop; .endr\n")));
  EXPECT_TRUE(fits(X86(".rept 36; nop; .endr\n"), 14)) << "two times 32 bytes";
  EXPECT_TRUE(fits(X86("1: jz 1b; jz 1b; jz 1b; jz 1b; jz 1b; jz 1b"))) << "two branches each";
  EXPECT_FALSE(fits(X86("1: jz 1b; jz 1b; jz 1b; jz 1b; jz 1b; jz 1b; jz 1b")));
}

TEST(Pipeline, TheTimesOfALineFitABlock) {
  for (const Microarchitecture* const on :
       {&nehalem, &sandy_bridge, &ivy_bridge, &haswell, &broadwell, &skylake, &skylake_sp}) {
    Tick most = 0;
    for (const Assembled& line : {X86(".rept 32; fnstenv (%rax); .endr\n"), X86(".rept 32; idiv %ecx; .endr\n"),
                                  X86(".rept 32; emms; .endr\n"), X86(".rept 12; add $0x1234, %ax; .endr\n")}) {
      const auto instructions = timed_block(std::as_bytes(line), *on);
      ASSERT_TRUE(instructions);
      const TimedBlockPtr block = make_block(*instructions, 0, *on);
      for (const auto ticks : block->ports) most = std::max<Tick>(most, ticks);
      for (const auto* const part : {&block->cached, &block->decode, &block->predecode})
        for (const TimedBlock::FrontEnd& state : *part) most = std::max<Tick>(most, state.takes);
    }
    EXPECT_GT(most, 300 * cycle);
    EXPECT_LT(most, 0xFFFF);
  }
}

TEST(Pipeline, DecodersFollowTheMicroOpCacheAfterACycle) {
  const auto instructions =
      timed_block(std::as_bytes(Assembled{X86(".rept 4; .byte 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0; .endr\n")}), skylake);
  ASSERT_TRUE(instructions);
  const TimedBlockPtr block = make_block(*instructions, 0, skylake);
  Pipeline pipeline{skylake};
  constexpr unsigned pairs = 500;
  for (unsigned times = 0; times < 2 * pairs; ++times) pipeline.retire(block, {}, {.decoded = times % 2 == 0});
  // Four of six micro-ops of a line, the switch, and two cycles for 32 bytes.
  constexpr double expected = 4. / 6 + 1 + 2;
  EXPECT_NEAR(static_cast<double>(pipeline.now()) / cycle / pairs, expected, 0.05 * expected);
}

TEST(Pipeline, ALoadGetsWhatAStoreBeforeItWrote) {
  EXPECT_CYCLES(4, X86("mov %rax, (%r8); mov (%r8), %rax"), skylake, {at(0), at(0)});
  EXPECT_CYCLES(5, X86("mov %rax, (%r8); mov (%r8), %rax"), haswell, {at(0), at(0)});
  EXPECT_CYCLES(4, X86("mov %rax, (%r8); mov 4(%r8), %eax"), skylake, {at(0), at(4, 4)}) << "a part of it";
}

TEST(Pipeline, ALoadThatNoSingleStoreCoversWaitsUntilItIsWritten) {
  EXPECT_CYCLES(13, X86("mov %al, (%r8); mov (%r8), %rax"), skylake, {at(0, 1), at(0)});
  EXPECT_CYCLES(13, X86("mov %al, (%r8); mov (%r8), %rbx"), skylake, {at(0, 1), at(0)})
      << "retirement waits, if no data do";
  EXPECT_CYCLES(1, X86("mov %al, (%r8); mov (%r8), %rbx"), skylake, {at(0, 1), at(64)});
}

// 248966, 4-KByte aliasing: some seven cycles.
TEST(Pipeline, ALoadWaitsForAStoreWhoseAddressDiffersAbove4KiBAlone) {
  const Assembled code = X86("mov %rbx, (%r8); mov (%rax), %rax");
  EXPECT_CYCLES(4, code, skylake, {at(0), at(4096 + 64)});
  EXPECT_CYCLES(4 + 7, code, skylake, {at(0), at(4096)});
  EXPECT_CYCLES(4 + 7, code, skylake, {at(0), at(0x7000'0004, 4)}) << "parts of them overlap";
  EXPECT_CYCLES(4 + 7, code, skylake, {at(4, 4), at(4096)});
}

// Buffers' sizes: 248966, chapter 2, in the table of each microarchitecture. A load that is late begins when the last
// micro-op that the buffers do not hold beside it has retired.
TEST(Pipeline, BuffersBoundWhatOverlaps) {
  std::vector accesses(9, at(64));
  accesses[0] = at(0, 8, 300);
  const Assembled loads = X86("mov (%r8), %rax; .rept 8; mov (%r9), %rbx; .endr\n");
  EXPECT_CYCLES(304. / 8, loads, skylake, accesses) << "72 loads";
  EXPECT_CYCLES(304. / 8, loads, ivy_bridge, accesses) << "64: the last one is of the eighth";
  const Assembled stores = X86("mov (%r8), %rax; .rept 7; mov %rbx, (%r9); .endr\n");
  EXPECT_CYCLES(304. / 9, stores, skylake, accesses) << "56 stores, and the load behind them";
  EXPECT_CYCLES(304. / 7, stores, haswell, accesses) << "42";
  EXPECT_CYCLES(304. / 12, X86("mov (%r8), %rax; .rept 19; lea 1(%rcx), %rbx; .endr\n"), skylake, accesses)
      << "224 micro-ops";
  EXPECT_CYCLES(304. * 19 / 97, X86("mov (%r8), %rax; .rept 19; lea 1(%rax), %rbx; .endr\n"), skylake, accesses)
      << "97 wait in the scheduler";
}

TEST(Pipeline, StoresThatMissAreHiddenUntilTheirBufferIsFull) {
  EXPECT_CYCLES(2, X86("mov %rbx, (%r8); mov %rbx, (%r9)"), skylake, {at(0, 8, 20), at(64, 8, 20)});
  EXPECT_CYCLES(560. / 56, X86("mov %rbx, (%r8)"), skylake, {at(0, 8, 560)});
}

// InstLatX64.
TEST(Pipeline, DivisionsTakeTheDivider) {
  EXPECT_CYCLES(14, X86("divsd %xmm1, %xmm0"));
  EXPECT_CYCLES(4, X86("movaps %xmm2, %xmm0; divsd %xmm1, %xmm0"));
  EXPECT_CYCLES(20, X86("divsd %xmm1, %xmm0"), haswell);
  EXPECT_CYCLES(14, X86("movaps %xmm2, %xmm0; divsd %xmm1, %xmm0"), ivy_bridge);
  EXPECT_CYCLES(6, X86("xor %edx, %edx; mov %ebx, %eax; div %ecx"));
  EXPECT_CYCLES(8, X86("vdivpd %ymm1, %ymm2, %ymm0"));
  EXPECT_CYCLES(25, X86("div %cx"));
  EXPECT_CYCLES(26, X86("idiv %cx"), haswell);
}

TEST(Pipeline, AnAtomicAccessWaitsForAllBeforeIt) {
  EXPECT_CYCLES(18, X86("lock add %rax, (%r8)"), skylake, {at(0), at(0)});
  EXPECT_CYCLES(22, X86("xchg %rax, (%r8)"), ivy_bridge, {at(0), at(0)});
}

TEST(Pipeline, LoopsThatWaitOverlapWithinTheReorderBuffer) {
  // A chain of 26 cycles, and 90 micro-ops that take 22.5 cycles to issue.
  EXPECT_CYCLES(26, X86("div %ecx; .rept 40; add %r8, %rbx; xor %ebx, %ebx; .endr\n"));
}

TEST(Pipeline, MissesOverlapUnlessOneWaitsForTheOther) {
  constexpr std::uint16_t late = 200;
  EXPECT_CYCLES(204, X86("mov (%rax), %rax"), skylake, {at(0, 8, late)});
  EXPECT_CYCLES(408, X86("mov (%rax), %rax; mov (%rax), %rax"), skylake, {at(0, 8, late), at(64, 8, late)});
  // All loads that the reorder buffer holds wait at the same time: 224 of them take as long as one.
  EXPECT_CYCLES(204. / 28, X86("mov (%r8), %rax; .rept 7; xor %ebx, %ebx; .endr\n"), skylake, {at(0, 8, late)});
  const Assembled code = X86("mov (%r8), %rax; add %r9, %rbx; xor %ebx, %ebx");
  EXPECT_EQ(cycles(code, skylake, {at(0, 8, 20)}), cycles(code, skylake, {at(0)})) << "a short one is hidden";
}

// 248966: ten fill buffers. Two hundred cycles each, with the L1's.
TEST(Pipeline, FillBuffersBoundMissesThatOverlap) {
  constexpr std::uint16_t late = 196;
  const auto misses = [](std::size_t count, HitLevel level) {
    std::vector accesses(count, at(0, 8, late));
    for (TimedAccess& access : accesses) access.level = level;
    return accesses;
  };
  const Assembled independent = X86(".rept 20; mov (%r8), %rbx; .endr\n");
  for (const HitLevel level : {HitLevel::l2, HitLevel::l3, HitLevel::l3_modified, HitLevel::dram})
    EXPECT_CYCLES(200. * 20 / 10, independent, skylake, misses(20, level));
  EXPECT_LT(cycles(independent, skylake, misses(20, HitLevel::lfb)), 200. * 20 / 70) << "they wait for others' lines";
  const Assembled chain = X86(".rept 20; mov (%rbx), %rbx; .endr\n");
  EXPECT_CYCLES(200. * 20, chain, skylake, misses(20, HitLevel::dram)) << "one at a time";
  // Of a chain there is one, however many of it wait for their addresses, and nine are left.
  const Assembled both = X86(".rept 2; mov (%rbx), %rbx; .rept 9; mov (%r8), %rcx; .endr; .endr\n");
  EXPECT_CYCLES(200. * 2, both, skylake, misses(20, HitLevel::dram));
}

// The refill, and the cycle in which the pair executes: Microarchitecture::refill says who measured it.
TEST(Pipeline, AMispredictedBranchCostsTheRefillFromItsExecutionOn) {
  constexpr BlockRun mispredicted{.mispredicted = true};
  EXPECT_CYCLES(20, X86("test %rax, %rax; 1: jne 1b"), skylake, {}, mispredicted);
  EXPECT_CYCLES(19, X86("test %rax, %rax; 1: jne 1b"), haswell, {}, mispredicted);
  EXPECT_CYCLES(1, X86("test %rax, %rax; 1: jne 1b"), skylake);
  constexpr BlockRun from_cache{.mispredicted = true, .taken = true, .decoded = true};
  EXPECT_EQ(cycles(X86("test %rax, %rax; 1: jne 1b"), skylake, {}, from_cache), 16 + 1 + 0.25)
      << "refill, branch, slot";
  EXPECT_CYCLES(17 + 2, X86(".rept 8; .byte 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0; .endr; test %rax, %rax; 1: jne 1b"),
                skylake, {}, from_cache)
      << "eight before it are issued in two cycles, whatever decoding them takes";
  EXPECT_CYCLES(16, X86("test %rax, %rax; 1: jne 1b"), ivy_bridge, {}, {.mispredicted = true, .decoded = true});
  EXPECT_CYCLES(20 + 3, X86("imul %rbx, %rax; test %rax, %rax; 1: jne 1b"), skylake, {}, mispredicted)
      << "its condition is late";
  EXPECT_CYCLES(20 + 204, X86("mov (%r8), %rax; test %rax, %rax; 1: jne 1b"), skylake, {at(0, 8, 200)}, mispredicted);
  EXPECT_CYCLES(26, X86("div %ecx; test %rbx, %rbx; 1: jne 1b"), skylake, {}, mispredicted)
      << "the division goes on while the front end begins anew";
}

TEST(Pipeline, TheFrontEndWaitsForItsCode) {
  EXPECT_CYCLES(31, X86("add %r8, %rax; add %r8, %rbx"), skylake, {}, {.fetch_wait = 30});
  EXPECT_CYCLES(26, X86("div %ecx; add %r8, %rbx"), skylake, {}, {.fetch_wait = 20}) << "unless it is far ahead";
}

TEST(Pipeline, APauseEndsAllThatIsInFlight) {
  const auto instructions = timed_block(std::as_bytes(Assembled{X86("mov (%rax), %rax; add %rbx, %rcx")}), skylake);
  ASSERT_TRUE(instructions);
  const TimedBlockPtr block = make_block(*instructions, 0, skylake);
  const std::vector late{at(0, 8, 1000)};
  Pipeline pipeline{skylake};
  pipeline.retire(block, late);
  const Time before = pipeline.now();
  EXPECT_GT(before, 1000 * cycle);
  constexpr unsigned long_pause = 4'000'000'000;
  for (const unsigned cycles : {100U, long_pause}) {
    const Time from = pipeline.now();
    pipeline.pause(cycles);
    EXPECT_EQ(pipeline.now() - from, Time{cycles} * cycle);
  }
  const Time from = pipeline.now();
  pipeline.retire(block, std::vector{at(0)});
  Pipeline empty{skylake};
  empty.retire(block, std::vector{at(0)});
  EXPECT_EQ(pipeline.now() - from, empty.now());
}

TEST(Pipeline, MoreOfABlockNeverRetiresEarlier) {
  for (const Microarchitecture* const on : {&ivy_bridge, &haswell, &skylake}) {
    AnyBlocks any{*on};
    Pipeline pipeline{*on};
    Time all{};
    for (unsigned block = 0; block < 300; ++block) {
      const auto code = any.code();
      const std::uint64_t rip = any.random();
      const TimedBlockPtr whole = make_block(code, rip, *on);
      const auto accesses = any.accesses(whole->accesses().size());
      const BlockRun how = any.run();
      const auto before = state_of(pipeline);
      Time last = pipeline.now();
      for (std::size_t count = 1; count <= code.size(); ++count) {
        const TimedBlockPtr part = make_block(std::span{code}.first(count), rip, *on);
        const Time at = pipeline.peek(*part, std::span{accesses}.first(part->accesses().size()), how);
        ASSERT_GE(at, last) << block << ' ' << count;
        last = at;
      }
      ASSERT_EQ(state_of(pipeline), before) << "peek() changes nothing";
      pipeline.retire(whole, accesses, how);
      ASSERT_EQ(pipeline.now(), last);
      all = last;
    }
    EXPECT_GT(all, 300 * 10 * cycle);
  }
}

TEST(Pipeline, GoesOnFromASavedState) {
  AnyBlocks any{skylake};
  Pipeline a{skylake}, b{skylake};
  const auto retire = [&any](Pipeline& one, Pipeline* other) {
    const auto code = any.code();
    const TimedBlockPtr block = make_block(code, any.random(), skylake);
    const auto accesses = any.accesses(block->accesses().size());
    const BlockRun how = any.run();
    one.retire(block, accesses, how);
    if (other != nullptr) other->retire(block, accesses, how);
  };
  for (unsigned times = 0; times < 100; ++times) {
    retire(a, nullptr);
    set_state(b, state_of(a));
    ASSERT_EQ(b.now(), a.now());
    retire(a, &b);
    ASSERT_EQ(b.now(), a.now());
    ASSERT_EQ(state_of(b), state_of(a));
  }
}

// What comes out of a file of a snapshot may be anything.
TEST(Pipeline, AnyBytesAreAState) {
  AnyBlocks any{skylake};
  for (unsigned times = 0; times < 50; ++times) {
    Pipeline pipeline{skylake};
    auto state = state_of(pipeline);
    for (std::byte& byte : state) byte = times == 0 ? std::byte{0xFF} : static_cast<std::byte>(any.random());
    set_state(pipeline, state);
    const Time before = pipeline.now();
    EXPECT_GE(before, 0);
    for (unsigned block = 0; block < 50; ++block) {
      const TimedBlockPtr made = make_block(any.code(), any.random(), skylake);
      const auto accesses = any.accesses(made->accesses().size());
      const BlockRun how = any.run();
      const Time at = pipeline.peek(*made, accesses, how);
      pipeline.retire(made, accesses, how);
      ASSERT_EQ(pipeline.now(), at);
    }
    EXPECT_GT(pipeline.now(), before);
  }
}

// Its ticks have 32 bits: every four million cycles they begin anew.
TEST(Pipeline, GoesOnForAnyTime) {
  const auto instructions =
      timed_block(std::as_bytes(Assembled{X86("div %ecx; mov %rax, (%r8); mov (%r8), %rax")}), skylake);
  ASSERT_TRUE(instructions);
  const TimedBlockPtr block = make_block(*instructions, 0, skylake);
  const std::vector accesses{at(0), at(0)};
  for (const bool decoded : {false, true}) {
    Pipeline pipeline{skylake};
    const auto run = [&] {
      const Time before = pipeline.now();
      for (unsigned times = 0; times < 100'000; ++times) pipeline.retire(block, accesses, {.decoded = decoded});
      return pipeline.now() - before;
    };
    run();
    const Time first = run();
    EXPECT_EQ(first, Time{30} * cycle * 100'000);
    for (unsigned times = 0; times < 3; ++times) EXPECT_EQ(run(), first);
    EXPECT_GT(pipeline.now(), Time{1} << 29);
  }
}

TEST(Pipeline, IsTheSameEachTime) {
  const Assembled code = X86("imul %rcx, %rax; mov (%r8), %rdx; add %rdx, %rax; mov %rax, (%r8)");
  const std::vector accesses{at(0), at(0)};
  EXPECT_EQ(cycles(code, haswell, accesses), cycles(code, haswell, accesses));
  EXPECT_GT(cycles(code, haswell, accesses), 5);
}

/// A thread that runs copies of the code.
class Thread {
 public:
  explicit Thread(Assembled code, const std::vector<TimedAccess>& accesses = {})
      : accesses_{accesses}, size_{code.size()}, code_{*timed_block(std::as_bytes(code), skylake)} {}
  /// Runs for so long, at least. Returns the cycles of a copy.
  double run(unsigned cycles) {
    const Time from = pipeline.now();
    unsigned copies = 0;
    for (; pipeline.now() < from + Time{cycles} * cycle; ++copies, ++copy_)
      pipeline.retire(make_block(code_, copy_ % 1000 * size_, skylake), accesses_);
    return static_cast<double>(pipeline.now() - from) / cycle / copies;
  }
  Pipeline pipeline{skylake};
  CoreUse use;

 private:
  std::vector<TimedAccess> accesses_;
  std::size_t size_;
  std::vector<TimedInstruction> code_;
  std::size_t copy_{};
};

/// The cycles of a copy while both run, by turns.
std::array<double, 2> both(Thread& first, Thread& second) {
  std::array<double, 2> takes{};
  for (unsigned turn = 0; turn < 20; ++turn) {
    first.use = first.pipeline.share_with(&second.use);
    takes[0] = first.run(5000);
    second.use = second.pipeline.share_with(&first.use);
    takes[1] = second.run(5000);
  }
  return takes;
}

#define ADDS "add $1, %rax; add $1, %rbx; add $1, %rcx; add $1, %rdx"
#define PRODUCTS "imul $3, %r8, %rax; imul $3, %r8, %rbx"

// 248966, chapter 2, Intel Hyper-Threading Technology: what both want, they take by turns.
TEST(Pipeline, TwoThreadsShareTheCore) {
  const auto expect = [](Assembled code, Assembled other_code, double takes, double other_takes) {
    Thread first{code}, second{other_code};
    const auto [one, other] = both(first, second);
    EXPECT_NEAR(one, takes, 0.1 * takes);
    EXPECT_NEAR(other, other_takes, 0.1 * other_takes);
  };
  {
    SCOPED_TRACE("slots of issue");
    expect(X86(ADDS), X86(ADDS), 2, 2);
  }
  {
    SCOPED_TRACE("a port");
    expect(X86(PRODUCTS), X86(PRODUCTS), 4, 4);
  }
  {
    SCOPED_TRACE("nothing, while both wait for their own results");
    expect(X86("imul %rax, %rax"), X86("imul %rax, %rax"), 3, 3);
  }
  {
    SCOPED_TRACE("what a thread does not use is the other's");
    expect(X86(ADDS), X86("imul %rax, %rax"), 12. / 11, 3);
  }
}

// The same chapter: the reorder buffer and those of loads and stores are halved.
TEST(Pipeline, AThreadHasHalfOfTheBuffersBesideAnother) {
  Thread thread{X86("mov (%r8), %rax; .rept 27; nop; .endr"),
                {{.physical = 0x1'0000, .bytes = 8, .late = 196, .level = HitLevel::dram}}};
  const double alone = thread.run(50'000);
  EXPECT_NEAR(alone, 200. * 28 / skylake.reorder_buffer, 3);
  const CoreUse idle{};
  thread.pipeline.share_with(&idle);
  thread.run(5000);
  EXPECT_NEAR(thread.run(50'000), 2 * alone, 6);
  thread.pipeline.share_with(nullptr);
  thread.run(5000);
  EXPECT_NEAR(thread.run(50'000), alone, 1);
}

TEST(Pipeline, AThreadBesideAnotherGoesOnAsItWasSaved) {
  Thread thread{X86(ADDS)}, restored{X86(ADDS)};
  CoreUse other;
  other.of.fill(64);
  thread.pipeline.share_with(&other);
  thread.run(1000);
  std::vector<std::vector<std::byte>> saved;
  thread.pipeline.visit_state([&](std::span<std::byte> part) { saved.emplace_back(part.begin(), part.end()); });
  auto next = saved.begin();
  restored.pipeline.visit_state([&](std::span<std::byte> part) { std::ranges::copy(*next++, part.begin()); });
  EXPECT_EQ(restored.run(1000), thread.run(1000));
  EXPECT_TRUE(restored.pipeline.is_sharing());
  EXPECT_EQ(restored.pipeline.share_with(nullptr).of, thread.pipeline.share_with(nullptr).of);
  EXPECT_EQ(restored.run(1000), thread.run(1000));
}

}  // namespace
}  // namespace vpmu::timing
