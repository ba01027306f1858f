#include <array>
#include <cstring>
#include <random>

#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/observed_fixture.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"

namespace vpmu::exec::test {
namespace {

const std::vector<unsigned> accesses =
    X86("mov (%rbx), %rax; nop; mov %eax, 64(%rbx); add %rax, 8(%rbx); lock incl 16(%rbx); ud2");

TEST_F(Observed, SeesAccessesInOrder) {
  state_.gpr[rbx] = data_;
  begin(accesses);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load", "S4@64", "retired store", "L8@8", "S8@8", "retired load store",
                             "S4@16", "retired load store"}));
  EXPECT_EQ(notes_.nows, (std::vector<std::uint64_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(notes_.lines, 1U);
}

TEST_F(Observed, AndTheSameOneByOne) {
  state_.gpr[rbx] = data_;
  begin(accesses);
  while (engine_.run(1) == Stop::budget) {
  }
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load", "S4@64", "retired store", "L8@8", "S8@8", "retired load store",
                             "S4@16", "retired load store"}));
  EXPECT_EQ(notes_.nows, (std::vector<std::uint64_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(notes_.lines, 1U);
}

// Under SMAP the pages that may be reached change with AC: what changes it retires before what is next, too.
TEST_F(Observed, WhatChangesACRetiresInOrder) {
  const Log expected{"S8@4088", "retired store", "L8@4088", "retired load", "L8@8",  "retired load",
                     "L8@8200", "retired load",  "L8@16",   "retired load", "L8@24", "retired load"};
  for (const std::uint64_t at_once : {100U, 1U, 2U}) {
    state_.gpr[rbx] = data_;
    state_.paging.cr4 |= x86::cr4::SMAP::mask;
    begin(
        X86("push $0x40000; popfq; mov 8(%rbx), %rax; mov 8200(%rbx), %rax; clac; mov 16(%rbx), %rax; "
            "mov 24(%rbx), %rax; ud2"));
    notes_.log.clear();
    while (engine_.run(at_once) == Stop::budget) {
    }
    EXPECT_EQ(engine_.passed().instructions, 7U) << "they run";
    EXPECT_EQ(notes_.log, expected) << at_once << " at once";
  }
}

// SDM 2B SAL/SAR/SHL/SHR, SDM 2B RCL/RCR/ROL/ROR: a count of 0 leaves the flags alone, and writes memory.
TEST_F(Observed, AShiftOfMemoryBy0Stores) {
  for (const unsigned modrm : {0x03U, 0x0BU, 0x13U, 0x1BU, 0x23U, 0x2BU, 0x3BU}) {  // rol, ror, rcl, rcr, shl, shr, sar
    for (const std::uint64_t at_once : {100U, 1U}) {
      notes_.log.clear();
      state_.gpr[rbx] = data_;
      state_.gpr[rcx] = 32;
      begin({0xD3, modrm, 0x0F, 0x0B});  // ... %cl, (%rbx); ud2
      while (engine_.run(at_once) == Stop::budget) {
      }
      EXPECT_EQ(notes_.log, (Log{"L4@0", "S4@0", "retired load store"})) << modrm << ", " << at_once << " at once";
    }
  }
}

const std::vector<unsigned> branches = X86("1: dec %rcx; jne 1b; jmp 2f; 2: call 3f; 3: pop %rax; ud2");

TEST_F(Observed, SeesWhereBranchesGo) {
  const Log expected{"branch 4099 to 4096 kind 1",
                     "branch 4099 to 4096 kind 1",
                     "branch 4099 not to 4101 kind 1",
                     "branch 4101 to 4103 kind 6",
                     "S8@4088",
                     "retired store",
                     "branch 4103 to 4108 kind 2",
                     "L8@4088",
                     "retired load"};
  for (const std::uint64_t at_once : {100U, 1U, 2U, 3U}) {
    notes_.log.clear();
    notes_.branch_nows.clear();
    state_.gpr[rcx] = 3;
    begin(branches);
    const std::uint64_t before = engine_.observed();
    while (engine_.run(at_once) == Stop::budget) {
    }
    EXPECT_EQ(notes_.log, expected) << at_once << " at once";
    EXPECT_EQ(engine_.observed() - before, 9U);
    for (std::uint64_t& now : notes_.branch_nows) now -= before;
    EXPECT_EQ(notes_.branch_nows, (std::vector<std::uint64_t>{2, 4, 6, 7, 8})) << at_once << " at once";
  }
}

// A flush is neither a load nor a store, and the code is fetched anew.
TEST_F(Observed, SeesFlushedLines) {
  const Log expected{
      "L8@0", "retired load", "flush 8", "L8@0", "retired load", "flush 4096", "branch 4113 to 4115 kind 6"};
  for (const std::uint64_t at_once : {100U, 1U, 2U, 3U}) {
    notes_.log.clear();
    const std::uint64_t lines = notes_.lines;
    state_.gpr[rbx] = data_;
    begin(X86("1: mov (%rbx), %rax; clflush 8(%rbx); mov (%rbx), %rax; clflush 1b(%rip); jmp 2f; 2: ud2"));
    while (engine_.run(at_once) == Stop::budget) {
    }
    EXPECT_EQ(notes_.log, expected) << at_once << " at once";
    EXPECT_GE(notes_.lines, lines + 1) << "the code is fetched behind its flush";
    const Passed passed = engine_.passed();
    EXPECT_EQ(passed.instructions, 5U);
    EXPECT_EQ(passed.loads, 2U);
    EXPECT_EQ(passed.stores, 0U);
  }
}

// Prefetches are loads, and one from where nothing is does not fault.
TEST_F(Observed, SeesPrefetches) {
  const Log expected{"prefetch 1@0",
                     "retired load",
                     "prefetch 2@64",
                     "retired load",
                     "prefetch 2@64",
                     "retired load",
                     "prefetch 1@0",
                     "retired load",
                     "prefetch 3@8",
                     "retired load",
                     "prefetch 1@1048576 nowhere",
                     "retired load",
                     "L8@0",
                     "retired load"};
  for (const std::uint64_t at_once : {100U, 1U, 2U, 3U}) {
    notes_.log.clear();
    state_.gpr[rbx] = data_;
    state_.gpr[rsi] = data_ + 256 * page_size;
    begin(
        X86("prefetcht0 (%rbx); prefetcht1 64(%rbx); prefetcht2 64(%rbx); prefetchnta (%rbx); prefetchw 8(%rbx); "
            "prefetcht0 (%rsi); mov (%rbx), %rax; ud2"));
    Stop stop = Stop::budget;
    while (stop == Stop::budget) stop = engine_.run(at_once);
    EXPECT_EQ(stop, Stop::unsupported);
    EXPECT_EQ(notes_.log, expected) << at_once << " at once";
    EXPECT_EQ(engine_.passed().instructions, 7U);
    EXPECT_EQ(engine_.passed().loads, 7U);
    EXPECT_EQ(engine_.passed().stores, 0U);
  }
}

// A CLFLUSH that faults flushes nothing.
TEST_F(Observed, AFlushThatFaultsIsNotSeen) {
  state_.gpr[rbx] = data_ + 3 * page_size;
  begin(X86("clflush (%rbx)"));
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_TRUE(notes_.log.empty());
}

TEST_F(Observed, ReturnsAreBranchesThatLoad) {
  begin(X86("call 1f; ud2; 1: ret"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"S8@4088", "retired store", "branch 4096 to 4103 kind 2", "L8@4088", "retired load",
                             "branch 4103 to 4101 kind 4"}));
}

// push (%rbx) without a stack: the observer must not see its load, only that of the mov before it.
TEST_F(Observed, WhatFaultsIsNotSeen) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + 4 * page_size;
  begin(X86("mov (%rbx), %rax; push (%rbx)"));
  for (unsigned again = 0; again < 3; ++again) EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load"}));
}

// push (%rbx) onto the page of its own code: the block gives it up, and it runs again alone.
TEST_F(Observed, WhatRunsAgainAloneIsSeenOnce) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + page_size + 2048;
  begin(X86("nop; push (%rbx); ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "S8@6136", "retired load store"}));
}

// A load and a store across the boundary of the code's page and the data page after it.
TEST_F(Observed, AccessesAcrossPagesAreTwo) {
  state_.gpr[rbx] = data_ + 2 * page_size - 3;
  begin(X86("mov (%rbx), %rax; mov %rax, (%rbx); ud2"));
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L3@8189", "L5@8192+", "retired load", "S3@8189", "S5@8192+", "retired store"}));
}

// rep movsb with more elements than one call of run() does, and past the end of memory.
TEST_F(Observed, StringsRetireOnceWithAllTheirElements) {
  constexpr std::uint64_t count = 2 * page_size;
  FlatRam large{8 * page_size};
  Engine engine{large, platform_};
  Notes notes{large.address()};
  notes.quiet = true;
  const Code code = X86("rep movsb; ud2");
  for (std::size_t i = 0; i < code.size(); ++i) large.bytes()[i] = static_cast<std::byte>(code[i]);
  state_.rip = large.address();
  state_.rflags = 2;
  state_.gpr[rcx] = count;
  state_.gpr[rsi] = large.address() + page_size;
  state_.gpr[rdi] = large.address() + 4 * page_size;
  engine.observe(&notes);
  engine.load(state_);
  Stop stop = Stop::again;
  unsigned turns = 0;
  for (; stop == Stop::again; ++turns) stop = engine.run(1);
  EXPECT_EQ(stop, Stop::budget);
  EXPECT_GT(turns, 1U);
  EXPECT_EQ(notes.loads, count);
  EXPECT_EQ(notes.stores, count);
  state_.gpr[rdi] = large.address() + 8 * page_size - 10;
  notes.loads = notes.stores = notes.given_up = 0;
  engine.load(state_);
  EXPECT_EQ(engine.run(1), Stop::fault);
  EXPECT_EQ(notes.loads, 10U) << "the eleventh element did not happen";
  EXPECT_EQ(notes.stores, 10U);
  EXPECT_EQ(notes.given_up, 1U) << "nor does the instruction retire with the ten";
}

/// Instructions that access memory in every way, use flags, and branch to the next instruction. RBX, RSI, RDI and RSP
/// point into the first page, R15 to where there is no memory.
const std::vector<std::vector<unsigned>>& memory_instructions() {
  static const std::vector<std::vector<unsigned>> list{
      X86("mov (%rbx), %rax"),
      X86("mov 32(%rbx,%rcx,4), %rax"),
      X86("mov %rax, 8(%rbx)"),
      X86("movb $0x77, 9(%rbx)"),
      X86("add %rax, 16(%rbx)"),
      X86("adc %rax, 16(%rbx)"),
      X86("add (%rbx), %rax"),
      X86("incl 20(%rbx)"),
      X86("notq 24(%rbx)"),
      X86("shlq $3, (%rbx)"),
      X86("mov $32, %cl; rorl %cl, (%rbx)"),
      X86("shll %cl, (%rbx)"),
      X86("cmpq $5, (%rbx)"),
      X86("cmpq $5, (%rbx); jb 1f; 1:"),
      X86("test %eax, 4(%rbx); jne 1f; 1:"),
      X86("setz 3(%rbx)"),
      X86("cmovz (%rbx), %rax"),
      X86("movzbl 5(%rbx), %edx"),
      X86("imul (%rbx), %rax"),
      X86("xchg %rax, (%rbx)"),
      X86("lock xadd %rax, (%rbx)"),
      X86("xadd %rax, (%rbx)"),
      X86("cmpxchg %rdx, (%rbx)"),
      X86("lock incq 32(%rbx)"),
      X86("bt %rcx, (%rbx)"),
      X86("btsq $5, (%rbx)"),
      X86("shld $5, %rax, 8(%rbx)"),
      X86("push %rax; pop %rdx"),
      X86("push $7; pop %rax"),
      X86("pushf; popf"),
      X86("push (%rbx); pop 8(%rbx)"),
      X86("call 1f; 1: pop %rdx"),
      X86("call 1f; jmp 2f; 1: ret; 2:"),
      X86("movsb"),
      X86("lodsb"),
      X86("push %rcx; mov $5, %ecx; rep stosb; pop %rcx"),
      X86("mov 4092(%rbx), %rax"),
      X86("add %rax, 4080(%rbx)"),
      X86("add %rcx, %rax"),
      X86("adc %rcx, %rax"),
      X86("je 1f; 1:"),
  };
  return list;
}

// Whether in one run, one by one, or in random pieces: the observer sees the same, in the same order.
TEST_F(Observed, HoweverItIsRun) {
  constexpr unsigned programs = 400, instructions = 30;
  std::mt19937_64 random{11};
  std::uint64_t seen = 0, faulted = 0;
  for (unsigned program = 0; program < programs; ++program) {
    Code code;
    for (unsigned i = 0; i < instructions; ++i) {
      const auto& next = memory_instructions()[random() % memory_instructions().size()];
      code.insert(code.end(), next.begin(), next.end());
    }
    if (program % 8 == 1) append(code, X86("mov (%r15), %rax"));
    if (program % 8 == 2) append(code, X86("mov $-1, %rdx; divq (%rbx)"));  // too large
    append(code, X86("ud2"));
    std::vector<Log> logs;
    std::vector<std::vector<std::uint64_t>> nows;
    std::vector<CpuState> ends;
    for (const unsigned max : {1000U, 1U, 7U}) {
      std::memset(ram_.bytes().data(), 0x5A, page_size);
      notes_.log.clear();
      notes_.nows.clear();
      notes_.restart();
      state_ = {};
      state_.gpr[rax] = program;
      state_.gpr[rcx] = program % 60;
      state_.gpr[rbx] = data_ + 8 * (program % 2);
      state_.gpr[rsi] = data_ + 512;
      state_.gpr[rdi] = data_ + 1024;
      state_.gpr[rsp] = data_ + 3072;
      Engine engine{ram_, platform_};
      put(code);
      state_.rip = ram_.address() + page_size;
      state_.rflags = 2;
      engine.observe(&notes_);
      engine.load(state_);
      Stop stop = Stop::budget;
      while (stop == Stop::budget || stop == Stop::again) stop = engine.run(max == 7 ? 1 + random() % max : max);
      faulted += stop == Stop::fault ? 1 : 0;
      logs.push_back(notes_.log);
      nows.push_back(notes_.nows);
      ends.push_back(engine.state());
    }
    seen += logs[0].size();
    for (const std::size_t way : {1U, 2U}) {
      ASSERT_EQ(logs[way], logs[0]) << "program " << program;
      ASSERT_EQ(nows[way], nows[0]) << "program " << program;
      ASSERT_EQ(ends[way].gpr, ends[0].gpr) << "program " << program;
      ASSERT_EQ(ends[way].rflags, ends[0].rflags) << "program " << program;
    }
  }
  EXPECT_GT(seen, 10'000U);
  EXPECT_EQ(faulted, 3 * programs / 4);
}

// The same program with and without an observer: the results are the same, and without it nothing is reported.
TEST_F(Observed, ChangesNothing) {
  std::vector<std::uint64_t> ends;
  for (const bool observed : {true, false, true}) {
    const std::size_t said = notes_.log.size();
    state_.gpr[rbx] = data_;
    std::memset(ram_.bytes().data(), 1, 64);
    put(accesses);
    state_.rip = data_ + page_size;
    engine_.observe(observed ? &notes_ : nullptr);
    engine_.load(state_);
    EXPECT_EQ(engine_.run(100), Stop::unsupported);
    EXPECT_EQ(engine_.passed().instructions, 5U);
    std::uint64_t word{};
    std::memcpy(&word, ram_.bytes().data() + 8, sizeof word);
    ends.push_back(word ^ engine_.state().gpr[rax]);
    EXPECT_EQ(notes_.log.size() - said, observed ? 9U : 0U);
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0], ends[2]);
}

// SDM 3A 4.10.4.1. An instruction knows more than the state that it leaves.
TEST_F(Observed, HearsOfNewTables) {
  begin(X86("nop; ud2"));
  engine_.run(1);
  EXPECT_TRUE(notes_.log.empty());
  state_.paging.cr3 = 0x1005;
  engine_.load(state_);
  EXPECT_EQ(std::exchange(notes_.log, {}), Log{"flushed address space 0"});
  state_.paging.cr4 |= x86::cr4::PCIDE::mask;
  engine_.load(state_);
  EXPECT_EQ(std::exchange(notes_.log, {}), Log{"flushed everything 5"});
  state_.paging.cr3 = 0x1006;
  engine_.resume(state_, TlbFlush{.of = TlbFlush::Of::nothing, .pcid = 6});
  EXPECT_EQ(std::exchange(notes_.log, {}), Log{"flushed nothing 6"});
  engine_.resume(state_, TlbFlush{.of = TlbFlush::Of::page, .pcid = 6, .linear = 0x2000});
  EXPECT_EQ(std::exchange(notes_.log, {}), Log{"flushed page 6"});
  engine_.resume(state_);
  EXPECT_TRUE(notes_.log.empty());
}

// Vector registers decide which bytes these instructions access: masked elements are not accessed, and a gather's
// elements are at addresses of their own.
TEST_F(Observed, MaskedMovesAndGathersTouchWhatIsNotMasked) {
  VectorPlatform platform;
  TestCode code;
  Engine engine{ram_, platform, &code};
  const auto set = [&](unsigned number, const std::array<std::int32_t, 4>& words) {
    std::memcpy(platform.state.legacy.data() + VectorState::xmm_at + 16UL * number, words.data(), sizeof words);
  };
  set(1, {0, -1, -1, 0});
  set(2, {100, 7, 200, 300});
  set(3, {0, 0, 0, 0});
  state_.paging.cr4 = 1U << 9 | 1U << 18;  // OSFXSR, OSXSAVE
  state_.gpr[rbx] = data_;
  state_.rip = ram_.address() + page_size;
  state_.rflags = 2;
  put(
      X86("vmaskmovps (%rbx), %xmm1, %xmm0; vmaskmovps %xmm0, %xmm1, (%rbx); vmaskmovps (%rbx), %xmm3, %xmm0; "
          "vpgatherdd %xmm1, (%rbx,%xmm2,4), %xmm0; mov (%rbx), %rax; ud2"));
  engine.observe(&notes_);
  engine.load(state_);
  EXPECT_EQ(engine.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"flushed everything 0", "L8@4", "retired load", "S8@4", "retired store", "retired load",
                             "L4@28", "L4@800", "retired load", "L8@0", "retired load"}));
}

}  // namespace
}  // namespace vpmu::exec::test
