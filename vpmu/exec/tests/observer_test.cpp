#include <array>
#include <cstring>
#include <random>

#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/observed_fixture.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"

namespace vpmu::exec::test {
namespace {

// mov (%rbx), %rax; nop; mov %eax, 64(%rbx); add %rax, 8(%rbx); lock incl 16(%rbx); ud2
const std::vector<unsigned> accesses{0x48, 0x8B, 0x03, 0x90, 0x89, 0x43, 0x40, 0x48, 0x01,
                                     0x43, 0x08, 0xF0, 0xFF, 0x43, 0x10, 0x0F, 0x0B};

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

// dec %rcx; jnz .-5; jmp .+0; call .+0; ret-like: pop %rax; ud2
const std::vector<unsigned> branches{0x48, 0xFF, 0xC9, 0x75, 0xFB, 0xEB, 0x00, 0xE8, 0, 0, 0, 0, 0x58, 0x0F, 0x0B};

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

// mov (%rbx), %rax; clflush 8(%rbx); mov (%rbx), %rax; clflush -9(%rip), which is this code; jmp .+0; ud2. A flush is
// neither a load nor a store, and the code is fetched anew.
TEST_F(Observed, SeesFlushedLines) {
  const Log expected{
      "L8@0", "retired load", "flush 8", "L8@0", "retired load", "flush 4096", "branch 4113 to 4115 kind 6"};
  for (const std::uint64_t at_once : {100U, 1U, 2U, 3U}) {
    notes_.log.clear();
    const std::uint64_t lines = notes_.lines;
    state_.gpr[rbx] = data_;
    begin({0x48, 0x8B, 0x03, 0x0F, 0xAE, 0x7B, 0x08, 0x48, 0x8B, 0x03, 0x0F,
           0xAE, 0x3D, 0xEF, 0xFF, 0xFF, 0xFF, 0xEB, 0x00, 0x0F, 0x0B});
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

// A CLFLUSH that faults flushes nothing.
TEST_F(Observed, AFlushThatFaultsIsNotSeen) {
  state_.gpr[rbx] = data_ + 3 * page_size;
  begin({0x0F, 0xAE, 0x3B});
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_TRUE(notes_.log.empty());
}

// call 1f; ud2; 1: ret
TEST_F(Observed, ReturnsAreBranchesThatLoad) {
  begin({0xE8, 2, 0, 0, 0, 0x0F, 0x0B, 0xC3});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"S8@4088", "retired store", "branch 4096 to 4103 kind 2", "L8@4088", "retired load",
                             "branch 4103 to 4101 kind 4"}));
}

// push (%rbx) without a stack: the observer must not see its load, only that of the mov before it.
TEST_F(Observed, WhatFaultsIsNotSeen) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + 4 * page_size;
  begin({0x48, 0x8B, 0x03, 0xFF, 0x33});
  for (unsigned again = 0; again < 3; ++again) EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load"}));
}

// push (%rbx) onto the page of its own code: the block gives it up, and it runs again alone.
TEST_F(Observed, WhatRunsAgainAloneIsSeenOnce) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + page_size + 2048;
  begin({0x90, 0xFF, 0x33, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "S8@6136", "retired load store"}));
}

// mov (%rbx), %rax and mov %rax, (%rbx) across the boundary of the code's page and the data page after it.
TEST_F(Observed, AccessesAcrossPagesAreTwo) {
  state_.gpr[rbx] = data_ + 2 * page_size - 3;
  begin({0x48, 0x8B, 0x03, 0x48, 0x89, 0x03, 0x0F, 0x0B});
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
  const Code code{0xF3, 0xA4, 0x0F, 0x0B};
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
      {0x48, 0x8B, 0x03},                                // mov (%rbx), %rax
      {0x48, 0x8B, 0x44, 0x8B, 0x20},                    // mov 32(%rbx,%rcx,4), %rax
      {0x48, 0x89, 0x43, 0x08},                          // mov %rax, 8(%rbx)
      {0xC6, 0x43, 0x09, 0x77},                          // movb $0x77, 9(%rbx)
      {0x48, 0x01, 0x43, 0x10},                          // add %rax, 16(%rbx)
      {0x48, 0x11, 0x43, 0x10},                          // adc %rax, 16(%rbx)
      {0x48, 0x03, 0x03},                                // add (%rbx), %rax
      {0xFF, 0x43, 0x14},                                // incl 20(%rbx)
      {0x48, 0xF7, 0x53, 0x18},                          // notq 24(%rbx)
      {0x48, 0xC1, 0x23, 0x03},                          // shlq $3, (%rbx)
      {0xB1, 0x20, 0xD3, 0x0B},                          // mov $32, %cl; rorl %cl, (%rbx)
      {0xD3, 0x23},                                      // shll %cl, (%rbx)
      {0x48, 0x83, 0x3B, 0x05},                          // cmpq $5, (%rbx)
      {0x48, 0x83, 0x3B, 0x05, 0x72, 0x00},              // the same; jb to the next
      {0x85, 0x43, 0x04, 0x75, 0x00},                    // test %eax, 4(%rbx); jne to the next
      {0x0F, 0x94, 0x43, 0x03},                          // setz 3(%rbx)
      {0x48, 0x0F, 0x44, 0x03},                          // cmovz (%rbx), %rax
      {0x0F, 0xB6, 0x53, 0x05},                          // movzbl 5(%rbx), %edx
      {0x48, 0x0F, 0xAF, 0x03},                          // imul (%rbx), %rax
      {0x48, 0x87, 0x03},                                // xchg %rax, (%rbx)
      {0xF0, 0x48, 0x0F, 0xC1, 0x03},                    // lock xadd %rax, (%rbx)
      {0x48, 0x0F, 0xC1, 0x03},                          // xadd %rax, (%rbx)
      {0x48, 0x0F, 0xB1, 0x13},                          // cmpxchg %rdx, (%rbx)
      {0xF0, 0x48, 0xFF, 0x43, 0x20},                    // lock incq 32(%rbx)
      {0x48, 0x0F, 0xA3, 0x0B},                          // bt %rcx, (%rbx)
      {0x48, 0x0F, 0xBA, 0x2B, 0x05},                    // btsq $5, (%rbx)
      {0x48, 0x0F, 0xA4, 0x43, 0x08, 0x05},              // shld $5, %rax, 8(%rbx)
      {0x50, 0x5A},                                      // push %rax; pop %rdx
      {0x6A, 0x07, 0x58},                                // push $7; pop %rax
      {0x9C, 0x9D},                                      // pushf; popf
      {0xFF, 0x33, 0x8F, 0x43, 0x08},                    // push (%rbx); pop 8(%rbx)
      {0xE8, 0x00, 0x00, 0x00, 0x00, 0x5A},              // call to the next; pop %rdx
      {0xE8, 0x02, 0x00, 0x00, 0x00, 0xEB, 0x01, 0xC3},  // call; jmp over; ret
      {0xA4},                                            // movsb
      {0xAC},                                            // lodsb
      {0x51, 0xB9, 0x05, 0, 0, 0, 0xF3, 0xAA, 0x59},     // push %rcx; mov $5, %ecx; rep stosb; pop %rcx
      {0x48, 0x8B, 0x83, 0xFC, 0x0F, 0x00, 0x00},        // mov 4092(%rbx), %rax
      {0x48, 0x01, 0x83, 0xF0, 0x0F, 0x00, 0x00},        // add %rax, 4080(%rbx)
      {0x48, 0x01, 0xC8},                                // add %rcx, %rax
      {0x48, 0x11, 0xC8},                                // adc %rcx, %rax
      {0x74, 0x00},                                      // jz to the next
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
    if (program % 8 == 1) code.insert(code.end(), {0x49, 0x8B, 0x07});  // mov (%r15), %rax
    if (program % 8 == 2)
      code.insert(code.end(), {0x48, 0xC7, 0xC2, 0xFF, 0xFF, 0xFF, 0xFF, 0x48, 0xF7,
                               0x33});  // mov $-1, %rdx; divq (%rbx): too large
    code.insert(code.end(), {0x0F, 0x0B});
    std::vector<Log> logs;
    std::vector<std::vector<std::uint64_t>> nows;
    std::vector<CpuState> ends;
    for (const unsigned most : {1000U, 1U, 7U}) {
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
      while (stop == Stop::budget || stop == Stop::again) stop = engine.run(most == 7 ? 1 + random() % most : most);
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

TEST_F(Observed, HearsOfNewTables) {
  begin({0x90, 0x0F, 0x0B});
  engine_.run(1);
  EXPECT_TRUE(notes_.log.empty());
  state_.paging.cr3 = 0x1000;
  engine_.load(state_);
  EXPECT_EQ(notes_.log, Log{"flushed"});
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
  // vmaskmovps (%rbx), %xmm1, %xmm0; vmaskmovps %xmm0, %xmm1, (%rbx); vmaskmovps (%rbx), %xmm3, %xmm0; vpgatherdd
  // %xmm1, (%rbx,%xmm2,4), %xmm0; mov (%rbx), %rax; ud2
  put({0xC4, 0xE2, 0x71, 0x2C, 0x03, 0xC4, 0xE2, 0x71, 0x2E, 0x03, 0xC4, 0xE2, 0x61,
       0x2C, 0x03, 0xC4, 0xE2, 0x71, 0x90, 0x04, 0x93, 0x48, 0x8B, 0x03, 0x0F, 0x0B});
  engine.observe(&notes_);
  engine.load(state_);
  EXPECT_EQ(engine.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"flushed", "L8@4", "retired load", "S8@4", "retired store", "retired load", "L4@28",
                             "L4@800", "retired load", "L8@0", "retired load"}));
}

}  // namespace
}  // namespace vpmu::exec::test
