#include "exec/engine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/bits.hpp"

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

// add $1, %rax; dec %rcx; jnz .-9; ud2
const std::vector<unsigned> counted_loop{0x48, 0x83, 0xC0, 1, 0x48, 0xFF, 0xC9, 0x75, 0xF7, 0x0F, 0x0B};

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
    begin({0x48, 0x83, 0xC0, 1, 0x48, 0x39, 0xC8, 0x75, 0xF7, 0x0F, 0x0B});
    EXPECT_EQ(engine_.run(budget), Stop::budget);
    EXPECT_EQ(engine_.passed().instructions, budget);
    EXPECT_EQ(engine_.passed().branches, budget / 3);
    EXPECT_EQ(gpr(rax), (budget + 2) / 3);
    constexpr std::array<std::uint64_t, 3> at{0, 4, 7};
    EXPECT_EQ(rip(), at[budget % 3]);
    if (budget % 3 == 2) {
      EXPECT_EQ(engine_.state().rflags & (rflags::CF | rflags::ZF), rflags::CF) << "the comparison alone";
    }
    EXPECT_EQ(engine_.run(10), Stop::budget) << "it goes on";
    EXPECT_EQ(engine_.passed().instructions, budget + 10);
  }
}

// inc %rax; cmp (%rdi), %rax; je to the next
TEST_P(EngineRuns, AComparisonThatFaultsTakesItsJumpBackToo) {
  state_.gpr[rdi] = ram_.address() + 3 * page_size;
  begin({0x48, 0xFF, 0xC0, 0x48, 0x3B, 0x07, 0x74, 0x00, 0x90});
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
  begin({0x48, 0x8B, 0x03,                    // mov (%rbx), %rax
         0x48, 0x01, 0x03,                    // add %rax, (%rbx)
         0x48, 0x89, 0x43, 0x08,              // mov %rax, 8(%rbx)
         0xE8, 0x07, 0,    0,    0,           // call +7
         0x48, 0xFF, 0xC9,                    // dec %rcx
         0x75, 0xEC,                          // jnz to the start
         0x0F, 0x0B,                          // ud2
         0x51, 0xB9, 0x10, 0,    0,    0,     // push %rcx; mov $0x10, %ecx
         0x0F, 0x31, 0x0F, 0x33, 0x0F, 0x32,  // rdtsc; rdpmc; rdmsr
         0x59, 0xC3});                        // pop %rcx; ret
  EXPECT_EQ(engine_.run(~0ULL), Stop::unsupported);
  EXPECT_EQ(rip(), 20U);
  EXPECT_EQ(engine_.passed().instructions, 13'000'000U);
}

// call +2; ud2; push %rax; pop %rbx; ret
TEST_P(EngineRuns, CountsLoadsAndStoresOfTheStack) {
  state_.gpr[rax] = 77;
  begin({0xE8, 2, 0, 0, 0, 0x0F, 0x0B, 0x50, 0x5B, 0xC3});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(rip(), 5U) << "back from the call";
  EXPECT_EQ(gpr(rbx), 77U);
  const Passed passed = engine_.passed();
  EXPECT_EQ(passed.instructions, 4U);
  EXPECT_EQ(passed.branches, 2U);
  EXPECT_EQ(passed.loads, 2U);
  EXPECT_EQ(passed.stores, 2U);
}

// inc %rax; mov %rax, (%rdi); inc %rax
TEST_P(EngineRuns, AFaultLeavesEverythingAsBeforeTheInstruction) {
  state_.gpr[rdi] = ram_.address() + 3 * page_size;
  begin({0x48, 0xFF, 0xC0, 0x48, 0x89, 0x07, 0x48, 0xFF, 0xC0});
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
  begin({0x48, 0x89, 0x07});
  EXPECT_EQ(engine_.run(1), Stop::fault);
  for (std::size_t i = 3 * page_size - 4; i < 3 * page_size; ++i) EXPECT_EQ(ram_.bytes()[i], std::byte{0});
}

// movb $7, 3(%rip) changes the immediate of the mov $1, %al after it.
TEST_P(EngineRuns, CodeThatChangesItsOwnBlockRunsAsChanged) {
  begin({0xC6, 0x05, 1, 0, 0, 0, 7, 0xB0, 1, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 7U);
  EXPECT_EQ(engine_.passed().instructions, 2U);
}

TEST_P(EngineRuns, CodeThatChangedMeanwhileIsDecodedAnew) {
  begin({0xB0, 1, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(gpr(rax), 1U);
  begin({0xB0, 2, 0x0F, 0x0B});
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

// rdsspq %rax; rdsspd %eax
TEST_P(EngineRuns, AReadOfTheShadowStackPointerAsANop) {
  state_.gpr[rax] = 0x1'2345'6789;
  begin({0xF3, 0x48, 0x0F, 0x1E, 0xC8, 0xF3, 0x0F, 0x1E, 0xC8, 0x0F, 0x0B});
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
  begin({0x90, 0x0F, 0x30, 0x90});
  EXPECT_EQ(engine_.run(100), Stop::budget);
  EXPECT_EQ(platform_.msrs[0x38F], 0x1'0000'0005U);
  EXPECT_EQ(rip(), 3U) << "after the WRMSR";
  EXPECT_EQ(engine_.passed().instructions, 2U);
  EXPECT_EQ(platform_.seen_at_write, 2U) << "the NOP and the WRMSR itself";
}

TEST_P(EngineRuns, WhatThePlatformLeavesStandsBeforeTheInstruction) {
  state_.gpr[rcx] = 0xC0000080;
  begin({0x90, 0x0F, 0x32});
  EXPECT_EQ(engine_.run(100), Stop::platform);
  EXPECT_EQ(rip(), 1U);
  EXPECT_EQ(engine_.passed().instructions, 1U);
}

TEST_P(EngineRuns, UserCodeReachesNoMsr) {
  state_.cpl = 3;
  state_.gpr[rcx] = 0x38F;
  begin({0x0F, 0x32});
  EXPECT_EQ(engine_.run(100), Stop::platform);
}

// rdpmc; mov %eax, %ebx; rdtsc
TEST_P(EngineRuns, CountersAndTscComeFromThePlatform) {
  state_.gpr[rcx] = 0x4000'0001;
  begin({0x0F, 0x33, 0x89, 0xC3, 0x0F, 0x31, 0x0F, 0x0B});
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
    begin({0x90, 0xF3, 0xAA, 0x0F, 0x0B});
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
  begin({0xF3, 0xAA, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(10), Stop::again);
  EXPECT_EQ(rip(), 0U);
  EXPECT_EQ(engine_.passed().instructions, 0U) << "it retires once (rule C5)";
  EXPECT_EQ(ram_.bytes()[4095], std::byte{0xAB});
}

// SDM 2B RDTSC, RDTSCP: a program may, unless CR4.TSD is set; RDMSR it may not.
TEST_P(EngineRuns, AProgramReadsTheTscAndNoMsr) {
  state_.cpl = 3;
  begin({0x0F, 0x31, 0x89, 0xC3, 0x0F, 0x01, 0xF9, 0x0F, 0x32});  // rdtsc; mov %eax, %ebx; rdtscp; rdmsr
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
  // lea -1(%ecx) to %edx, %rax; lea (%ecx), %bx; ud2
  begin({0x67, 0x8D, 0x51, 0xFF, 0x67, 0x48, 0x8D, 0x41, 0xFF, 0x67, 0x66, 0x8D, 0x19, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 3U);
  EXPECT_EQ(gpr(rdx), 0xFFFF'FFFFU);
  EXPECT_EQ(gpr(rax), 0xFFFF'FFFFU);
  EXPECT_EQ(gpr(rbx), 0xFFFF'FFFF'FFFF'0000U);
}

// A jump to a non-canonical address: the jump itself faults.
TEST_P(EngineRuns, AJumpToANonCanonicalAddressIsLeftAlone) {
  state_.gpr[rax] = 1ULL << 60;
  begin({0xFF, 0xE0});
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(rip(), 0U);
  EXPECT_EQ(engine_.passed().instructions, 0U);
}

TEST_P(EngineRuns, CodeWhereNoMemoryIsCannotBeFetched) {
  begin({0x90});
  state_.rip = ram_.address() + 3 * page_size;
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::fault);
}

// MOV RAX, imm32 in two pages: writes to its bytes in the second page are noticed, too.
TEST_P(EngineRuns, AnInstructionThatCrossesPages) {
  constexpr std::array mov{0x48, 0xC7, 0xC0, 0x11, 0x22, 0x33, 0x44, 0x0F, 0x0B};
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
  const auto put = [&](std::size_t where, std::initializer_list<unsigned> bytes) {
    for (const unsigned byte : bytes) ram_.bytes()[where++] = static_cast<std::byte>(byte);
  };
  state_.rip = data_ + at;
  state_.rflags = 2;
  put(at, {0x90, 0x0F, 0x0B});  // nop, ud2
  engine_.load(state_);
  EXPECT_EQ(engine_.run(10), Stop::unsupported);
  // movb $0x55, (%rbx) writes into the MOV after it: RBX points to the immediate, in the next page
  put(at, {0xEB, 0x07});                                    // jmp to the MOV
  put(at + 9, {0x48, 0xC7, 0xC0, 0x11, 0x22, 0x33, 0x44});  // mov $0x44332211, %rax; from here on in the next page
  // dec %ecx; jz +5; movb $0x55, (%rbx); jmp to at; ud2
  put(at + 16, {0xFF, 0xC9, 0x74, 0x05, 0xC6, 0x03, 0x55, 0xEB, 0xE7, 0x0F, 0x0B});
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
