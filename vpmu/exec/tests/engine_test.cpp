#include "exec/engine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "exec/state/cpu_feature.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

class Msrs final : public Platform {
 public:
  Answer rdmsr(std::uint32_t index, std::uint64_t& value) override {
    value = msrs[index];
    return index < 0x1000 ? Answer::done : Answer::leave;
  }
  Answer wrmsr(std::uint32_t index, std::uint64_t value) override {
    if (index >= 0x1000) return Answer::leave;
    msrs[index] = value;
    if (engine != nullptr) {
      seen_at_write = engine->passed().instructions;
      engine->stop_soon();
    }
    return Answer::done;
  }
  Answer rdpmc(std::uint32_t index, std::uint64_t& value) override {
    value = index;
    return Answer::done;
  }
  Answer rdtsc(std::uint64_t& value) override {
    value = 0x1'0000'0002;
    return Answer::done;
  }
  Answer rdtscp(std::uint64_t& value, std::uint64_t& aux) override {
    aux = 7;
    return rdtsc(value);
  }

  std::map<std::uint32_t, std::uint64_t> msrs;
  Engine* engine{};
  std::uint64_t seen_at_write{};
};

/// Code on the second page, data on the first, no memory after the third. The parameter: after how many times a block
/// is compiled.
class EngineRuns : public testing::TestWithParam<std::uint32_t> {
 protected:
  using Code = std::vector<unsigned>;

  void begin(const Code& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
    state_.rip = code_;
    state_.rflags = 2;
    state_.gpr[rsp] = data_ + page_size;
    engine_.load(state_);
  }
  std::uint64_t gpr(RegisterNumber n) { return engine_.state().gpr[n]; }
  std::uint64_t rip() { return engine_.state().rip - code_; }

  FlatRam ram_{3 * page_size};
  std::uint64_t data_{ram_.address()};
  std::uint64_t code_{ram_.address() + page_size};
  CpuState state_;
  Msrs platform_;
  TestCode host_code_;
  Engine engine_{ram_, platform_, &host_code_, Compiling{.after = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Interpreted, EngineRuns, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Compiled, EngineRuns, testing::Values(1));

// The host's CPU runs it, before the guest has used any vector register.
TEST_P(EngineRuns, MovbeWithoutVectorState) {
  if (!host_has(CpuFeature::movbe)) GTEST_SKIP() << "this CPU has no MOVBE";
  begin(X86("movbe (%rdi), %rax; jmp ."));
  state_.gpr[rdi] = data_;
  for (unsigned n = 0; n < 8; ++n) ram_.bytes()[n] = static_cast<std::byte>(n);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(2), Stop::budget);
  EXPECT_EQ(gpr(rax), 0x0001'0203'0405'0607U);
}

const std::vector<unsigned> counted_loop = X86("1: add $1, %rax; dec %rcx; jne 1b; ud2");

TEST_P(EngineRuns, CountsALoopExactly) {
  state_.gpr[rcx] = 1000;
  begin(counted_loop);
  EXPECT_EQ(engine_.run(1'000'000), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 1000U);
  EXPECT_EQ(rip(), 9U) << "before the UD2";
  EXPECT_EQ(engine_.passed().instructions, 3000U);
  EXPECT_EQ(engine_.passed().branches, 1000U);
  EXPECT_EQ(engine_.passed().loads, 0U);
}

// The budget may end within a block or between two blocks.
TEST_P(EngineRuns, StopsAfterExactlyTheBudget) {
  for (std::uint64_t budget = 0; budget < 10; ++budget) {
    state_.gpr[rax] = 0;
    state_.gpr[rcx] = 1000;
    begin(counted_loop);
    EXPECT_EQ(engine_.run(budget), Stop::budget);
    EXPECT_EQ(engine_.passed().instructions, budget);
    EXPECT_EQ(gpr(rax), (budget + 2) / 3);
    EXPECT_EQ(engine_.passed().branches, budget / 3);
    EXPECT_EQ(engine_.run(10), Stop::budget) << "it goes on";
    EXPECT_EQ(engine_.passed().instructions, budget + 10);
  }
}

// add $1, %rax; cmp %rcx, %rax; jne .-7; ud2. The comparison and the jump run as one, and are two instructions.
TEST_P(EngineRuns, StopsBetweenAComparisonAndItsJump) {
  for (std::uint64_t budget = 0; budget < 10; ++budget) {
    state_.gpr[rax] = 0;
    state_.gpr[rcx] = 1000;
    begin(X86("1: add $1, %rax; cmp %rcx, %rax; jne 1b; ud2"));
    EXPECT_EQ(engine_.run(budget), Stop::budget);
    EXPECT_EQ(engine_.passed().instructions, budget);
    EXPECT_EQ(engine_.passed().branches, budget / 3);
    EXPECT_EQ(gpr(rax), (budget + 2) / 3);
    constexpr std::array<std::uint64_t, 3> at{0, 4, 7};
    EXPECT_EQ(rip(), at[budget % 3]);
    if (budget % 3 == 2) {
      using namespace x86::rflags;
      EXPECT_EQ(engine_.state().rflags & (CF::mask | ZF::mask), CF::mask) << "the comparison alone";
    }
    EXPECT_EQ(engine_.run(10), Stop::budget) << "it goes on";
    EXPECT_EQ(engine_.passed().instructions, budget + 10);
  }
}

TEST_P(EngineRuns, AComparisonThatFaultsTakesItsJumpBackToo) {
  state_.gpr[rdi] = ram_.address() + 3 * page_size;
  begin(X86("inc %rax; cmp (%rdi), %rax; je 1f; 1: nop"));
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(rip(), 3U);
  EXPECT_EQ(engine_.passed().instructions, 1U);
  EXPECT_EQ(engine_.passed().branches, 0U);
  EXPECT_EQ(engine_.passed().loads, 0U);
}

// A deep chain of blocks must not use the host's stack.
TEST_P(EngineRuns, RunsTensOfMillions) {
  state_.gpr[rcx] = 20'000'000;
  begin(counted_loop);
  EXPECT_EQ(engine_.run(~0ULL), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 60'000'000U);
}

// No instruction may use the host's stack: loads and stores by all operands, call, return, calls of the platform.
TEST_P(EngineRuns, RunsMillionsOfEveryKind) {
  state_.gpr[rcx] = 1'000'000;
  state_.gpr[rbx] = data_;
  begin(
      X86("1: mov (%rbx), %rax; "
          "add %rax, (%rbx); "
          "mov %rax, 8(%rbx); "
          "call 2f; "
          "dec %rcx; "
          "jne 1b; "
          "ud2; "
          "2: push %rcx; mov $0x10, %ecx; "
          "rdtsc; rdpmc; rdmsr; "
          "pop %rcx; ret"));
  EXPECT_EQ(engine_.run(~0ULL), Stop::unsupported);
  EXPECT_EQ(rip(), 20U);
  EXPECT_EQ(engine_.passed().instructions, 13'000'000U);
}

TEST_P(EngineRuns, CountsLoadsAndStoresOfTheStack) {
  state_.gpr[rax] = 77;
  begin(X86("call 1f; ud2; 1: push %rax; pop %rbx; ret"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(rip(), 5U) << "back from the call";
  EXPECT_EQ(gpr(rbx), 77U);
  const Passed passed = engine_.passed();
  EXPECT_EQ(passed.instructions, 4U);
  EXPECT_EQ(passed.branches, 2U);
  EXPECT_EQ(passed.loads, 2U);
  EXPECT_EQ(passed.stores, 2U);
}

TEST_P(EngineRuns, AFaultLeavesEverythingAsBeforeTheInstruction) {
  state_.gpr[rdi] = ram_.address() + 3 * page_size;
  begin(X86("inc %rax; mov %rax, (%rdi); inc %rax"));
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(rip(), 3U);
  EXPECT_EQ(gpr(rax), 1U);
  EXPECT_EQ(engine_.passed().instructions, 1U) << "what was taken off for the rest of the block is given back";
  EXPECT_EQ(engine_.passed().stores, 0U);
}

// A store that crosses the end of memory writes neither part.
TEST_P(EngineRuns, AStoreAcrossIntoNothingWritesNothing) {
  state_.gpr[rdi] = ram_.address() + 3 * page_size - 4;
  state_.gpr[rax] = ~0ULL;
  begin(X86("mov %rax, (%rdi)"));
  EXPECT_EQ(engine_.run(1), Stop::fault);
  for (std::size_t i = 3 * page_size - 4; i < 3 * page_size; ++i) EXPECT_EQ(ram_.bytes()[i], std::byte{0});
}

// The first instruction changes the immediate of the next.
TEST_P(EngineRuns, CodeThatChangesItsOwnBlockRunsAsChanged) {
  begin(X86("movb $7, 1(%rip); mov $1, %al; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 7U);
  EXPECT_EQ(engine_.passed().instructions, 2U);
}

TEST_P(EngineRuns, CodeThatChangedMeanwhileIsDecodedAnew) {
  begin(X86("mov $1, %al; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 1U);
  begin(X86("mov $2, %al; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 2U);
}

TEST_P(EngineRuns, UnchangedCodeIsDecodedOnce) {
  state_.gpr[rcx] = 3;
  begin(counted_loop);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  const std::uint64_t once = engine_.decoded_blocks();
  EXPECT_GT(once, 0U);
  begin(counted_loop);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.decoded_blocks(), once);
}

TEST_P(EngineRuns, AReadOfTheShadowStackPointerAsANop) {
  state_.gpr[rax] = 0x1'2345'6789;
  begin(X86("rdsspq %rax; rdsspd %eax; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 0x1'2345'6789U) << "so that unwinders know that there is none";
  EXPECT_EQ(engine_.passed().instructions, 2U);
}

// nop; wrmsr; nop
TEST_P(EngineRuns, AWriteToAnMsrSeesWhatWasCountedAndMayStopTheEngine) {
  platform_.engine = &engine_;
  state_.gpr[rcx] = 0x38F;
  state_.gpr[rax] = 5;
  state_.gpr[rdx] = 1;
  begin(X86("nop; wrmsr; nop"));
  EXPECT_EQ(engine_.run(100), Stop::budget);
  EXPECT_EQ(platform_.msrs[0x38F], 0x1'0000'0005U);
  EXPECT_EQ(rip(), 3U) << "after the WRMSR";
  EXPECT_EQ(engine_.passed().instructions, 2U);
  EXPECT_EQ(platform_.seen_at_write, 2U) << "the NOP and the WRMSR itself";
}

TEST_P(EngineRuns, WhatThePlatformLeavesStandsBeforeTheInstruction) {
  state_.gpr[rcx] = 0xC0000080;
  begin(X86("nop; rdmsr"));
  EXPECT_EQ(engine_.run(100), Stop::platform);
  EXPECT_EQ(rip(), 1U);
  EXPECT_EQ(engine_.passed().instructions, 1U);
}

TEST_P(EngineRuns, UserCodeReachesNoMsr) {
  state_.cpl = 3;
  state_.gpr[rcx] = 0x38F;
  begin(X86("rdmsr"));
  EXPECT_EQ(engine_.run(100), Stop::platform);
}

TEST_P(EngineRuns, CountersAndTscComeFromThePlatform) {
  state_.gpr[rcx] = 0x4000'0001;
  begin(X86("rdpmc; mov %eax, %ebx; rdtsc; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rbx), 0x4000'0001U);
  EXPECT_EQ(gpr(rax), 2U);
  EXPECT_EQ(gpr(rdx), 1U);
}

// rep stosb over itself: the first byte written makes nop; stosb of it, however many instructions are asked for.
TEST_P(EngineRuns, AStringInstructionThatOverwritesItselfGoesOnAsWhatItHasBecome) {
  for (const std::uint64_t at_once : {1U, 100U}) {
    state_.gpr[rax] = 0x90;
    state_.gpr[rcx] = 10;
    state_.gpr[rdi] = code_ + 1;
    begin(X86("nop; rep stosb; ud2"));
    Stop stop = Stop::budget;
    for (int i = 0; i < 20 && (stop == Stop::budget || stop == Stop::again); ++i) stop = engine_.run(at_once);
    EXPECT_EQ(stop, Stop::unsupported);
    EXPECT_EQ(rip(), 3U);
    EXPECT_EQ(gpr(rcx), 9U) << "one element with the prefix, one without";
    EXPECT_EQ(gpr(rdi), code_ + 3);
    EXPECT_EQ(engine_.passed().instructions, 3U) << "two NOPs and a STOSB: the one with the prefix never ended";
  }
}

// rep stosb of more than is done in one go
TEST_P(EngineRuns, ALongStringInstructionComesBackAndGoesOn) {
  state_.gpr[rdi] = data_;
  state_.gpr[rcx] = 4096 + 100;
  state_.gpr[rax] = 0xAB;
  begin(X86("rep stosb; ud2"));
  EXPECT_EQ(engine_.run(10), Stop::again);
  EXPECT_EQ(rip(), 0U);
  EXPECT_EQ(engine_.passed().instructions, 0U) << "it retires once (rule C5)";
  EXPECT_EQ(ram_.bytes()[4095], std::byte{0xAB});
}

// SDM 2B RDTSC, RDTSCP: a program may, unless CR4.TSD is set; RDMSR it may not.
TEST_P(EngineRuns, AProgramReadsTheTscAndNoMsr) {
  state_.cpl = 3;
  begin(X86("rdtsc; mov %eax, %ebx; rdtscp; rdmsr"));
  EXPECT_EQ(engine_.run(100), Stop::platform);
  EXPECT_EQ(rip(), 7U) << "before RDMSR";
  EXPECT_EQ(gpr(rbx), 2U);
  EXPECT_EQ(gpr(rax), 2U);
  EXPECT_EQ(gpr(rdx), 1U);
  EXPECT_EQ(gpr(rcx), 7U);
  state_.paging.cr4 |= bit(2);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::platform);
  EXPECT_EQ(rip(), 0U);
}

// SDM 2A LEA, table 3-54: of an address of 32 bits the result is zero-extended.
TEST_P(EngineRuns, AddressesOf32BitsInLea) {
  state_.gpr[rcx] = 0xAAAA'BBBB'0000'0000;
  state_.gpr[rdx] = ~0ULL;
  state_.gpr[rbx] = ~0ULL;
  begin(X86("lea -1(%ecx), %edx; lea -1(%ecx), %rax; lea (%ecx), %bx; ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 3U);
  EXPECT_EQ(gpr(rdx), 0xFFFF'FFFFU);
  EXPECT_EQ(gpr(rax), 0xFFFF'FFFFU);
  EXPECT_EQ(gpr(rbx), 0xFFFF'FFFF'FFFF'0000U);
}

// A jump to a non-canonical address: the jump itself faults.
TEST_P(EngineRuns, AJumpToANonCanonicalAddressIsLeftAlone) {
  state_.gpr[rax] = 1ULL << 60;
  begin(X86("jmp *%rax"));
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(rip(), 0U);
  EXPECT_EQ(engine_.passed().instructions, 0U);
}

TEST_P(EngineRuns, CodeWhereNoMemoryIsCannotBeFetched) {
  begin(X86("nop"));
  state_.rip = ram_.address() + 3 * page_size;
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::fault);
}

// MOV RAX, imm32 in two pages: writes to its bytes in the second page are noticed, too.
TEST_P(EngineRuns, AnInstructionThatCrossesPages) {
  const Assembled mov = X86("mov $0x44332211, %rax; ud2");
  const std::size_t at = 2 * page_size - 3;
  for (std::size_t i = 0; i < mov.size(); ++i) ram_.bytes()[at + i] = static_cast<std::byte>(mov[i]);
  state_.rip = data_ + at;
  state_.rflags = 2;
  engine_.load(state_);
  EXPECT_EQ(engine_.run(10), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 0x4433'2211U);
  EXPECT_EQ(engine_.passed().instructions, 1U);
  ram_.bytes()[at + 3] = std::byte{0x55};
  engine_.load(state_);
  engine_.run(10);
  EXPECT_EQ(gpr(rax), 0x4433'2255U);
}

// Code that was changed from outside and now crosses into the next page: the engine notices its own writes there, too.
TEST_P(EngineRuns, CodeThatComesToCrossPagesIsWatchedInBoth) {
  const std::size_t at = 2 * page_size - 12;
  const auto put = [&](std::size_t where, const std::vector<unsigned>& bytes) {
    for (const unsigned byte : bytes) ram_.bytes()[where++] = static_cast<std::byte>(byte);
  };
  state_.rip = data_ + at;
  state_.rflags = 2;
  put(at, X86("nop; ud2"));
  engine_.load(state_);
  EXPECT_EQ(engine_.run(10), Stop::unsupported);
  // The MOVB writes into the MOV: RBX points to the immediate, in the next page.
  put(at, X86("jmp .+9"));                                                     // to the MOV
  put(at + 9, X86("mov $0x44332211, %rax"));                                   // its last four bytes in the next page
  put(at + 16, X86("dec %ecx; jz 1f; movb $0x55, (%rbx); jmp .-23; 1: ud2"));  // to `at`
  state_.gpr[rbx] = data_ + at + 12;
  state_.gpr[rcx] = 2;
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 0x4433'2255U);
}

// If the second page is no memory, the instruction does not run.
TEST_P(EngineRuns, AnInstructionWhoseEndCannotBeFetchedIsNotRun) {
  const std::size_t at = 3 * page_size - 2;
  ram_.bytes()[at] = std::byte{0x48};
  ram_.bytes()[at + 1] = std::byte{0xC7};
  state_.rip = data_ + at;
  state_.rflags = 2;
  engine_.load(state_);
  EXPECT_NE(engine_.run(1), Stop::budget);
  EXPECT_EQ(engine_.passed().instructions, 0U);
}

}  // namespace
}  // namespace vpmu::exec::test
