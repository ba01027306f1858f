#include "exec/observer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/flat_ram.hpp"

namespace vpmu::exec::test {
namespace {

/// Writes down what it sees, addresses relative to a base.
class Notes final : public Observer {
 public:
  explicit Notes(std::uint64_t base) : base_{base} {}
  void fetched(const SeenCode& code) override {
    ++lines;
    EXPECT_EQ(code.linear, code.physical) << "no paging here";
    EXPECT_EQ(code.page_bytes, page_size);
  }
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    EXPECT_EQ(a.linear, a.physical);
    EXPECT_EQ(a.page_bytes, page_size);
    (a.store ? stores : loads) += 1;
    add((a.store ? "S" : "L") + std::to_string(a.bytes) + "@" + std::to_string(a.linear - base_) + (a.second_half ? "+" : ""));
    EXPECT_GE(now, last_) << "time does not run back";
    last_ = now;
    nows.push_back(now);
  }
  void retired(bool load, bool store) override { add(std::string{"retired"} + (load ? " load" : "") + (store ? " store" : "")); }
  void branched(const SeenBranch& b) override {
    add("branch " + std::to_string(b.at - base_) + (b.taken ? " to " : " not to ") + std::to_string(b.to - base_) + " kind " +
        std::to_string(static_cast<unsigned>(b.kind)));
  }
  void abandoned() override { add("abandoned"); }
  void flushed() override { add("flushed"); }

  bool quiet{};
  std::vector<std::string> log;
  std::vector<std::uint64_t> nows;
  std::uint64_t loads{}, stores{}, lines{};

 private:
  void add(std::string line) {
    if (!quiet) log.push_back(std::move(line));
  }
  std::uint64_t base_;
  std::uint64_t last_{};
};

/// Code on the second page, data on the first and third; what is behind is no memory.
class Observed : public testing::Test {
 protected:
  using Code = std::vector<unsigned>;
  using Log = std::vector<std::string>;

  void put(const Code& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
  }
  void begin(const Code& code) {
    put(code);
    state_.rip = ram_.address() + page_size;
    state_.rflags = 2;
    if (state_.gpr[rsp] == 0) state_.gpr[rsp] = ram_.address() + page_size;
    engine_.observe(&notes_);
    engine_.load(state_);
  }

  FlatRam ram_{3 * page_size};
  std::uint64_t data_{ram_.address()};
  Notes notes_{ram_.address()};
  NoPlatform platform_;
  CpuState state_;
  Engine engine_{ram_, platform_};
};

// mov (%rbx), %rax; nop; mov %eax, 64(%rbx); add %rax, 8(%rbx); lock incl 16(%rbx); ud2
const std::vector<unsigned> accesses{0x48, 0x8B, 0x03, 0x90, 0x89, 0x43, 0x40, 0x48, 0x01, 0x43, 0x08, 0xF0, 0xFF, 0x43, 0x10, 0x0F, 0x0B};

TEST_F(Observed, SeesAccessesInOrder) {
  state_.gpr[rbx] = data_;
  begin(accesses);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load", "S4@64", "retired store", "L8@8", "S8@8", "retired load store", "S4@16", "retired load store"}));
  EXPECT_EQ(notes_.nows, (std::vector<std::uint64_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(notes_.lines, 1U);
}

TEST_F(Observed, AndTheSameOneByOne) {
  state_.gpr[rbx] = data_;
  begin(accesses);
  while (engine_.run(1) == Stop::budget) {
  }
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load", "S4@64", "retired store", "L8@8", "S8@8", "retired load store", "S4@16", "retired load store"}));
  EXPECT_EQ(notes_.nows, (std::vector<std::uint64_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(notes_.lines, 1U);
}

// dec %rcx; jnz .-5; jmp .+0; call .+0; ret-like: pop %rax; ud2
const std::vector<unsigned> branches{0x48, 0xFF, 0xC9, 0x75, 0xFB, 0xEB, 0x00, 0xE8, 0, 0, 0, 0, 0x58, 0x0F, 0x0B};

TEST_F(Observed, SeesWhereBranchesGo) {
  const Log expected{"branch 4099 to 4096 kind 1",  "branch 4099 to 4096 kind 1", "branch 4099 not to 4101 kind 1", "branch 4101 to 4103 kind 6",
                     "S8@4088", "retired store", "branch 4103 to 4108 kind 2", "L8@4088", "retired load"};
  for (const std::uint64_t at_once : {100U, 1U, 2U, 3U}) {
    notes_.log.clear();
    state_.gpr[rcx] = 3;
    begin(branches);
    while (engine_.run(at_once) == Stop::budget) {
    }
    EXPECT_EQ(notes_.log, expected) << at_once << " at once";
  }
}

// call 1f; ud2; 1: ret
TEST_F(Observed, ReturnsAreBranchesThatLoad) {
  begin({0xE8, 2, 0, 0, 0, 0x0F, 0x0B, 0xC3});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"S8@4088", "retired store", "branch 4096 to 4103 kind 2", "L8@4088", "retired load", "branch 4103 to 4101 kind 4"}));
}

// push (%rbx), where there is no stack: its load did not happen. The mov before it did.
TEST_F(Observed, WhatFaultsIsNotSeen) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + 4 * page_size;
  begin({0x48, 0x8B, 0x03, 0xFF, 0x33});
  for (unsigned again = 0; again < 3; ++again) EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(notes_.log, (Log{"L8@0", "retired load", "abandoned", "abandoned", "abandoned"}));
}

// push (%rbx) onto the page of the code itself: given up once in the block, and done alone.
TEST_F(Observed, WhatRunsAgainAloneIsSeenOnce) {
  state_.gpr[rbx] = data_;
  state_.gpr[rsp] = data_ + page_size + 2048;
  begin({0x90, 0xFF, 0x33, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"abandoned", "L8@0", "S8@6136", "retired load store"}));
}

// mov (%rbx), %rax and mov %rax, (%rbx) from the code's page to the data behind it.
TEST_F(Observed, AccessesAcrossPagesAreTwo) {
  state_.gpr[rbx] = data_ + 2 * page_size - 3;
  begin({0x48, 0x8B, 0x03, 0x48, 0x89, 0x03, 0x0F, 0x0B});
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(notes_.log, (Log{"L3@8189", "L5@8192+", "retired load", "abandoned", "S3@8189", "S5@8192+", "retired store"}));
}

// rep movsb: longer than the engine does in one go, and past the end of memory.
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
  notes.loads = notes.stores = 0;
  engine.load(state_);
  EXPECT_EQ(engine.run(1), Stop::fault);
  EXPECT_EQ(notes.loads, 10U) << "the eleventh element did not happen";
  EXPECT_EQ(notes.stores, 10U);
}

// Twice the same program, with an observer and without: the same end, and not a word when there is none.
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

}  // namespace
}  // namespace vpmu::exec::test
