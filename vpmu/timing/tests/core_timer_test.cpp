// Cycles follow from what retires, however it is cut into pieces.
#include "timing/core_timer.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/random_program.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/bits.hpp"

namespace vpmu::timing {
namespace {

using exec::Engine;
using exec::Stop;

/// A guest without paging that runs one program: data on the first and third page, code on the second.
class Guest {
 public:
  explicit Guest(exec::test::FlatRam& ram, std::uint32_t compile_after = ~0U)
      : ram_{ram}, engine_{ram_, platform_, &host_code_, exec::Compiling{.after = compile_after}} {
    model_.keep_time(timer_);
    engine_.observe(&model_);
    timer_.count(true);
  }
  [[nodiscard]] std::uint64_t code_at() const { return ram_.address() + page_size; }
  template <class Bytes>
  void put(const Bytes& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
    exec::CpuState s;
    s.rip = code_at();
    s.rflags = 2;
    s.gpr.fill(ram_.address() + 2 * page_size + 256);
    s.paging.cr4 = bit(9) | bit(18);  // OSFXSR, OSXSAVE
    engine_.load(s);
  }
  /// Runs until `instructions` have retired since the beginning, in pieces of at most `piece`. Where the engine stops
  /// somebody else is at work, and the guest goes on at one of `entries`.
  void run_to(std::uint64_t instructions, std::uint64_t piece, const std::vector<std::size_t>& entries) {
    while (passed() < instructions) {
      const Stop stop = engine_.run(std::min(piece, instructions - passed()));
      if (stop == Stop::budget || stop == Stop::again) continue;
      timer_.pause(engine_.observed(), 20);
      exec::CpuState s = engine_.state();
      s.rip = code_at() + entries[passed() % entries.size()];
      s.gpr.fill(ram_.address() + 2 * page_size + 256);
      if (++stops_ > 10 * instructions) return;
      engine_.resume(s);
    }
  }
  struct Counted {
    std::uint64_t cycles{};
    PipelineTotals totals;
    friend bool operator==(const Counted&, const Counted&) = default;
  };
  Stop run_once() { return engine_.run(~0U); }
  [[nodiscard]] Counted counted() {
    const std::uint64_t cycles = timer_.cycles(engine_.observed());
    return {.cycles = cycles, .totals = timer_.totals()};
  }
  /// Goes on as the other one would, with the same memory.
  void go_on_as(Guest& other) {
    engine_.load(other.engine_.state());
    std::vector<std::vector<std::byte>> image;
    other.model_.visit_state([&](std::span<std::byte> part) { image.emplace_back(part.begin(), part.end()); },
                             other.engine_.observed());
    auto saved = image.begin();
    model_.visit_state([&](std::span<std::byte> part) { std::ranges::copy(*saved++, part.begin()); }, 0);
    platform_.state = other.platform_.state;
    before_ = other.passed();
    stops_ = other.stops_;
  }
  /// Goes on from any state.
  void go_on_from(std::mt19937_64& random) {
    model_.visit_state(
        [&](std::span<std::byte> part) {
          for (std::byte& byte : part) byte = static_cast<std::byte>(random());
        },
        engine_.observed());
  }
  [[nodiscard]] std::uint64_t passed() const { return before_ + engine_.observed(); }
  [[nodiscard]] std::uint64_t compiled() const { return engine_.compiled_blocks(); }
  [[nodiscard]] const exec::Engine& engine() const { return engine_; }

 private:
  exec::test::FlatRam& ram_;
  exec::test::VectorPlatform platform_;
  exec::test::TestCode host_code_;
  Engine engine_;
  CoreTimer timer_{skylake};
  uarch::ProcessorModel model_{*uarch::find_profile("skylake")};
  std::uint64_t stops_{};
  std::uint64_t before_{};  ///< Instructions of the one that it goes on as.
};

constexpr std::uint64_t instructions = 20'000;

/// A random program, and numbers of instructions after which the cycles are asked for.
struct Trial {
  explicit Trial(std::uint64_t seed) : random{seed}, program{seed, ram.address() + page_size, true} {
    program.write();
    // More of them at first, when most accesses miss.
    for (std::uint64_t at = 0; at < instructions;) ends.push_back(at += 1 + random() % (at < 200 ? 4 : 3000));
  }
  [[nodiscard]] std::unique_ptr<Guest> guest(bool is_compiled) {
    std::ranges::fill(ram.bytes(), std::byte{});
    auto made = std::make_unique<Guest>(ram, is_compiled ? 1 : ~0U);
    made->put(program.code());
    return made;
  }
  /// Of a guest that runs pieces of at most that size.
  std::vector<Guest::Counted> counted(std::uint64_t piece, bool is_compiled) {
    const auto runs = guest(is_compiled);
    std::vector<Guest::Counted> all;
    for (const std::uint64_t end : ends) {
      runs->run_to(end, piece, program.blocks());
      all.push_back(runs->counted());
    }
    compiled += runs->compiled();
    return all;
  }

  std::mt19937_64 random;
  exec::test::FlatRam ram{3 * page_size};
  exec::test::RandomProgram program;
  std::vector<std::uint64_t> ends;
  std::uint64_t compiled{};
};

TEST(CoreTimer, CutsChangeNoCycleAndNoCount) {
  std::uint64_t compiled = 0;
  for (std::uint64_t seed = 1; seed < 8; ++seed) {
    Trial trial{seed};
    const auto whole = trial.counted(~0U, false);
    EXPECT_GT(whole.back().cycles, instructions / 8);
    ASSERT_EQ(trial.compiled, 0U);
    for (const std::uint64_t piece : {std::uint64_t{1}, 2 + trial.random() % 40, 50 + trial.random() % 1000}) {
      ASSERT_EQ(trial.counted(piece, false), whole) << "seed " << seed << ", pieces of " << piece;
      ASSERT_EQ(trial.counted(piece, true), whole) << "seed " << seed << ", compiled, pieces of " << piece;
    }
    ASSERT_EQ(trial.counted(~0U, true), whole) << "seed " << seed << ", compiled";
    compiled += trial.compiled;
  }
  EXPECT_GT(compiled, 100U);
}

/// What so many instructions of a program count is the same interpreted and compiled, whole and in pieces, and saved in
/// between. Where it stops, it goes on at one of `entries`.
template <class Bytes>
void expect_the_same_in_all_ways(const Bytes& code, std::uint64_t all, const std::vector<std::size_t>& entries) {
  exec::test::FlatRam ram{3 * page_size};
  std::optional<Guest::Counted> first;
  for (const bool is_compiled : {false, true}) {
    for (const std::uint64_t piece : {~0U, 1U, 2U, 3U, 7U}) {
      Guest guest{ram, is_compiled ? 1 : ~0U};
      guest.put(code);
      guest.run_to(all, piece, entries);
      ASSERT_GE(guest.passed(), all);
      EXPECT_EQ(guest.compiled() != 0, is_compiled);
      if (!first) first = guest.counted();
      EXPECT_EQ(guest.counted(), *first) << (is_compiled ? "compiled" : "interpreted") << ", pieces of " << piece;
    }
  }
  auto saved = std::make_unique<Guest>(ram);
  saved->put(code);
  for (std::uint64_t at = 1; at <= all; ++at) {
    saved->run_to(at, 1, entries);
    auto next = std::make_unique<Guest>(ram);
    next->go_on_as(*saved);
    saved = std::move(next);
  }
  EXPECT_EQ(saved->counted(), *first) << "saved";
  EXPECT_GT(first->cycles, 100U);
}

// Of lines that are on their way, and with a full store buffer.
TEST(CoreTimer, AnInstructionThatLoadsAndStoresTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(
      X86("1: incl (%rbx); add $64, %rbx; mov %rax, 8(%rdx); mov %rax, 16(%rdx); mov %rax, 24(%rdx); "
          "mov %rax, 32(%rdx); mov %rax, 40(%rdx); mov %rax, 48(%rdx); jmp 1b"),
      9 * 50, {0});
}

// What is seen of it is a store.
TEST(CoreTimer, ALockedInstructionTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(
      X86("1: lock incl (%rbx); add $64, %rbx; xchg %rax, 8(%rdx); lock cmpxchg %rcx, 16(%rdx); mov %rax, 24(%rdx); "
          "jmp 2f; 2: inc %ecx; jmp 1b"),
      8 * 50, {0});
}

// SDM 3A 8.2.3.9: it is not reordered with other accesses, so that its line is not under way with those of others.
TEST(CoreTimer, WhatIsInOrderWaitsForItsLinesOneByOne) {
  constexpr std::uint64_t rounds = 200;
  const auto cycles = [](const auto& code) {
    exec::test::FlatRam ram{1024 * page_size};
    Guest guest{ram, 1};
    guest.put(code);
    EXPECT_NE(guest.run_once(), Stop::again);
    EXPECT_GE(guest.passed(), 1 + rounds * 4);
    return guest.counted().cycles;
  };
  // No prefetcher knows the next page.
#define IN_A_LOOP(code) "mov $200, %ecx; 1: " code "; add $12608, %rsi; dec %ecx; jne 1b; ud2"
  const std::uint64_t one_by_one = rounds * uarch::find_profile("skylake")->latency.dram;
  EXPECT_GE(cycles(X86(IN_A_LOOP("lock incl (%rsi)"))), one_by_one);
  EXPECT_LT(cycles(X86(IN_A_LOOP("incl (%rsi)"))), one_by_one / 2);
  // SDM 2A LFENCE: what comes after it does not begin before all before it has completed.
  EXPECT_GE(cycles(X86(IN_A_LOOP("mov (%rsi), %rax; lfence"))), one_by_one);
  EXPECT_LT(cycles(X86(IN_A_LOOP("mov (%rsi), %rax; sfence"))), one_by_one / 2);
  // SDM 2A MFENCE: a load after it waits for the loads before it, and until the stores before it are visible.
  EXPECT_GE(cycles(X86(IN_A_LOOP("mov %eax, (%rsi); mfence; mov (%rbx), %rdx"))), one_by_one);
  EXPECT_GE(cycles(X86(IN_A_LOOP("mov (%rsi), %rax; mfence"))), one_by_one);
#undef IN_A_LOOP
}

TEST(CoreTimer, ABarrierTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(X86("1: mov %rax, (%rbx); inc %ecx; mfence; add $64, %rbx; mov (%rdx), %rcx; inc %ecx; "
                                  "lfence; inc %ecx; mov 64(%rdx), %rcx; lfence; jmp 2f; 2: inc %ecx; jmp 1b"),
                              13 * 40, {0});
}

// Its line is fetched when something there retires, which is not the first time.
TEST(CoreTimer, AnInstructionThatFaultsTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(
      X86("xor %eax, %eax; 1: inc %ecx; .fill 60, 1, 0x90; 2: mov (%rax), %rdx; inc %ecx; jmp 1b"), 400, {0, 67, 0});
}

TEST(CoreTimer, ALineThatFlushesItselfTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(
      X86("jmp 1f; .fill 62, 1, 0x90; 1: inc %ecx; inc %edx; clflush 1b(%rip); inc %ecx; jmp 1b"), 400, {0});
}

TEST(CoreTimer, ALineThatStoresToItselfTakesTheSameInAllWays) {
  expect_the_same_in_all_ways(X86("jmp 1f; .fill 62, 1, 0x90; 1: inc %ecx; movb $0x90, 2f(%rip); inc %ecx; 2: nop; "
                                  "3: movb $0x90, 2b(%rip); .fill 64, 1, 0x90; jmp 1b"),
                              400, {0});
  expect_the_same_in_all_ways(X86("1: inc %ecx; inc %edx; movb $0x90, 2f(%rip); inc %ecx; jmp 1b; 2: nop"), 400, {0});
}

// A guest that goes on from a saved state knows that the L1I has the line, but has no translation of it.
TEST(CoreTimer, AStoreToCodeThatIsNotTranslatedTakesTheSameInAllWays) {
  const auto code =
      X86("jmp 2f; 1: lea 768(%rbx), %rdi; mov $16, %ecx; 3: movb $0xC3, (%rdi); add $32, %rdi; dec %ecx; jne 3b; ud2;"
          "2: movb $0xC3, 1024(%rbx); lea 1024(%rbx), %rax; call *%rax; jmp 1b");
  constexpr std::uint64_t until_loop = 7, all = until_loop + 1 + 4 * 16;
  exec::test::FlatRam ram{3 * page_size};
  std::optional<Guest::Counted> first;
  for (const std::uint32_t compile_after : {~0U, 1U}) {
    Guest before{ram};
    before.put(code);
    before.run_to(until_loop, ~0U, {0});
    Guest guest{ram, compile_after};
    guest.go_on_as(before);
    guest.run_to(all, ~0U, {0});
    if (!first) first = guest.counted();
    EXPECT_EQ(guest.counted(), *first);
  }
  EXPECT_EQ(first->totals[PipelineQuantity::self_modifying_code].sum, 1U);
}

// SDM 3A 11.6: a store to a line of code that was fetched. The second store of a round finds none.
TEST(CoreTimer, AStoreToCodeClearsThePipeline) {
  constexpr std::uint64_t rounds = 100, each = 5;
  exec::test::FlatRam ram{3 * page_size};
  const auto cycles = [&ram](const auto& code, std::uint64_t clears) {
    Guest guest{ram};
    guest.put(code);
    guest.run_to(rounds * each, ~0U, {0});
    const Guest::Counted counted = guest.counted();
    EXPECT_EQ(counted.totals[PipelineQuantity::self_modifying_code].sum, clears);
    EXPECT_EQ(counted.totals[PipelineQuantity::machine_clear].beginnings, clears);
    EXPECT_GE(counted.totals[PipelineQuantity::recovery].sum, clears * 10);
    return counted.cycles;
  };
  const auto changing = cycles(X86("1: movb $0x90, 2f(%rip); movb $0x90, 3f(%rip); 2: nop; 3: nop; jmp 1b"), rounds);
  const auto beside = cycles(X86("1: movb $0x90, -2048(%rbx); movb $0x90, -2047(%rbx); 2: nop; 3: nop; jmp 1b"), 0);
  EXPECT_GT(changing, beside + 24 * rounds) << "the refill, and the line from the L2";
}

TEST(CoreTimer, SavingChangesNoCycleAndNoCount) {
  for (std::uint64_t seed = 1; seed < 8; ++seed) {
    Trial trial{seed};
    const auto whole = trial.counted(~0U, true);
    auto guest = trial.guest(true);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      guest->run_to(trial.ends[n], ~0U, trial.program.blocks());
      ASSERT_EQ(guest->counted(), whole[n]) << "seed " << seed << ", restored " << n << " times";
      auto next = std::make_unique<Guest>(trial.ram, 1);
      next->go_on_as(*guest);
      guest = std::move(next);
      ASSERT_EQ(guest->counted(), whole[n]) << "seed " << seed;
    }
  }
}

TEST(CoreTimer, CountsInstructionsWithoutARowByTheirForm) {
  const auto code = X86("bndmov %bnd0, %bnd1; add %eax, %ecx; bndmov %bnd2, %bnd3; 1: jmp 1b");
  SeenBlock block;
  block.rip = 0x1000;
  block.instructions = 4;
  block.code = std::as_bytes(std::span{code});
  CoreTimer timer{skylake};
  EXPECT_TRUE(timer.forms_without_row().empty());
  static_cast<void>(timer.code_of(block));
  EXPECT_EQ(timer.without_row(), 2U);
  EXPECT_EQ(timer.forms_without_row(), (std::map<std::string, std::uint64_t>{{"bndmov sys,sys", 2}}));
}

// A guest may have any code, as much as it likes: of this each block takes some kilobytes.
TEST(CoreTimer, WhatItKeepsOfCodeIsBounded) {
  const auto code = X86(".rept 32; add %eax, (%rcx); .endr\n");
  CoreTimer timer{skylake};
  std::vector<SeenBlock> blocks(32'000);
  std::size_t most = 0, before = 0;
  unsigned shrinks = 0;
  for (std::size_t n = 0; n < blocks.size(); ++n, before = timer.kept_bytes()) {
    blocks[n].rip = n * code.size();
    blocks[n].instructions = 32;
    blocks[n].code = std::as_bytes(std::span{code});
    ASSERT_EQ(timer.code_of(blocks[n]).parts.size(), 1U);
    most = std::max(most, timer.kept_bytes());
    shrinks += timer.kept_bytes() < before ? 1 : 0;
  }
  EXPECT_GT(shrinks, 0U) << "more came than is kept";
  EXPECT_LT(most, 4 * BlockStore::max_bytes + (1U << 20));
  // The last ones are known again, and the first ones made anew.
  const std::size_t kept = timer.kept_bytes();
  ASSERT_EQ(timer.code_of(blocks.back()).parts.size(), 1U);
  EXPECT_EQ(timer.kept_bytes(), kept);
  ASSERT_EQ(timer.code_of(blocks.front()).parts.size(), 1U);
}

// Blocks outlive their observer.
TEST(CoreTimer, ABlockThatAnotherHasSeenIsNew) {
  const auto code = X86("add %eax, (%rcx)\n");
  const SeenBlock block{.rip = 0x1000, .instructions = 1, .code = std::as_bytes(std::span{code})};
  const std::vector<SeenBlock> more(3, block);
  {
    CoreTimer first{skylake};
    for (const SeenBlock& one : more) ASSERT_EQ(first.code_of(one).parts.size(), 1U);
    ASSERT_EQ(first.code_of(block).parts.size(), 1U);
  }
  CoreTimer second{skylake};
  EXPECT_EQ(second.code_of(block).parts.size(), 1U);
  EXPECT_GT(second.kept_bytes(), 0U);
}

// What told() leaves out is always 0, and of the rest programs have something, but for what needs blocks made for it,
// as other tests have them: these programs do not divide, nor fill the scheduler or the fill buffers, nor store to
// code.
TEST(CoreTimer, SaysWhatItTells) {
  PipelineQuantities seen;
  for (std::uint64_t seed = 1; seed < 8; ++seed) {
    Trial trial{seed};
    const PipelineTotals totals = trial.counted(~0U, true).back().totals;
    all_pipeline_quantities.for_each([&](PipelineQuantity q) {
      if (totals[q].sum != 0) seen = seen | PipelineQuantities::of(q);
    });
  }
  EXPECT_TRUE(CoreTimer::told().contains(seen));
  using enum PipelineQuantity;
  const auto others = PipelineQuantities::of(scheduler_full, stores_hold_up, dividing, divider_uops, aliased_loads,
                                             fill_buffers_full, machine_clear, self_modifying_code);
  CoreTimer::told().without(seen | others).for_each([](PipelineQuantity q) {
    ADD_FAILURE() << "nothing of quantity " << static_cast<unsigned>(q);
  });
}

// The engine leaves a string instruction after some elements, which are part of its time.
TEST(CoreTimer, SavingInTheMiddleOfAStringInstructionChangesNoCycle) {
  const auto program = X86("mov $9000, %ecx; sub $8448, %rsi; rep lodsb; mov $1000, %edx; 1: dec %edx; jne 1b; ud2");
  exec::test::FlatRam ram{3 * page_size};
  std::array<std::uint64_t, 2> cycles{};
  for (const bool saves : {false, true}) {
    auto guest = std::make_unique<Guest>(ram);
    guest->put(program);
    unsigned left = 0;
    for (Stop stop = Stop::again; stop == Stop::again;) {
      stop = guest->run_once();
      if (stop != Stop::again) break;
      ++left;
      if (!saves) continue;
      (void)guest->counted().cycles;
      auto next = std::make_unique<Guest>(ram);
      next->go_on_as(*guest);
      guest = std::move(next);
    }
    EXPECT_EQ(left, 2U) << "it was in the middle";
    EXPECT_EQ(guest->passed(), 2004U) << "more than max_per_instruction holds back";
    cycles[saves ? 1 : 0] = guest->counted().cycles;
  }
  // No cache has the lines. Each takes its time on the channel, and if no prefetcher worked ten were on their way at a
  // time; whatever bytes of it are asked for. And a cycle for each round of the loop.
  const uarch::Profile& skylake = *uarch::find_profile("skylake");
  EXPECT_GT(cycles[0], 9000 / 64 * skylake.channel + 1000);
  EXPECT_LT(cycles[0], 9000 / 64 * skylake.latency.dram / 10 + 1000);
  EXPECT_EQ(cycles[1], cycles[0]);
}

// Lines of memory that no load waits for, one behind the other, come no faster than memory's channels give them, and,
// as prefetchers ask for them, faster than ten fill buffers could.
TEST(CoreTimer, StreamsThroughMemoryInTheTimeOfItsChannels) {
  exec::test::FlatRam ram{1024 * page_size};
  auto guest = std::make_unique<Guest>(ram, 1);
  constexpr unsigned rounds = 6000, lines_of_round = 8;
  guest->put(
      X86("mov $6000, %ecx; 1: mov (%rsi), %rax; mov 64(%rsi), %rax; mov 128(%rsi), %rax; mov 192(%rsi), %rax;"
          "mov 256(%rsi), %rax; mov 320(%rsi), %rax; mov 384(%rsi), %rax; mov 448(%rsi), %rax; add $512, %rsi;"
          "dec %ecx; jne 1b; ud2"));
  while (guest->run_once() == Stop::again) {
  }
  const double of_line = static_cast<double>(guest->counted().cycles) / (rounds * lines_of_round);
  const uarch::Profile& skylake = *uarch::find_profile("skylake");
  EXPECT_GE(of_line, skylake.channel);
  EXPECT_LT(of_line, skylake.latency.dram / 10.);
}

// A snapshot's bytes may be anything.
TEST(CoreTimer, GoesOnFromAnyState) {
  std::mt19937_64 random{1};
  std::uint64_t passed = 0;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    Trial trial{seed};
    auto guest = trial.guest(seed % 2 != 0);
    guest->go_on_from(random);
    guest->run_to(2000, 1 + random() % 500, trial.program.blocks());
    (void)guest->counted().cycles;
    passed += guest->passed();
  }
  EXPECT_GT(passed, 10'000U);
}

}  // namespace
}  // namespace vpmu::timing
