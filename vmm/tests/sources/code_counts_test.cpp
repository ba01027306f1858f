#include "sources/code_counts.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <string>

// Every event is counted at the block of code in which it happens.

namespace vmm::test {
namespace {

using vpmu::BranchKind;
using vpmu::Seen;
using vpmu::SeenBlock;
using vpmu::SeenBlocks;
using vpmu::SeenCode;

constexpr std::uint64_t physical_page = 0x7000, other_page = 0x8000, kernel = 0xFFFF'FFFF'8100'0000;

/// A block at `rip`, in a page of physical memory.
struct CodeAt {
  CodeAt(std::uint64_t rip, std::uint32_t instructions, std::uint64_t page = physical_page)
      : line{.linear = rip, .physical = page + rip % vpmu::page_size},
        block{.rip = rip,
              .instructions = instructions,
              .branch = {.at = rip, .kind = BranchKind::conditional},
              .lines = std::span{&line, 1}} {}
  SeenCode line;
  SeenBlock block;
};

/// The next observer: it tells what it was told, in its order.
class Next final : public vpmu::Observer {
 public:
  std::string told;
  void begun(const SeenBlock& block, std::uint64_t now) override {
    told += fmt::format("block {:x} at {}; ", block.rip, now);
  }
  void fetched(const SeenCode& code) override { told += fmt::format("line {:x}; ", code.linear); }
  void accessed(const vpmu::SeenAccess& access, std::uint64_t now) override {
    told += fmt::format("access {:x} at {}; ", access.linear, now);
  }
  void retired(bool /*load*/, bool /*store*/) override { told += "retired; "; }
  void branched(const vpmu::SeenBranch& branch) override {
    told += fmt::format("branch to {:x} at {}; ", branch.to, branch.now);
    ++branches;
  }
  void abandoned() override { told += "abandoned; "; }
  void flushed_line(const vpmu::SeenFlush& /*flush*/) override { told += "line flushed; "; }
  void flushed(const vpmu::TlbFlush& /*flush*/) override { told += "flushed; "; }
  void remapped() override { told += "remapped; "; }
  std::uint64_t branches{};
};

std::span<const vpmu::SeenPage, vpmu::tlb_entries> pages_of_none() {
  static const std::array<vpmu::SeenPage, vpmu::tlb_entries> none{};
  return none;
}

class CodeCountsOf : public testing::Test {
 protected:
  /// Counts instructions, and what else is asked for.
  void begin(std::vector<CodeCounts::Column> more = {}, vpmu::Observer* next = nullptr) {
    std::vector<CodeCounts::Column> columns{
        {.total = [](std::uint64_t now) { return now; }, .user = true, .kernel = true, .are_instructions = true}};
    for (auto& column : more) columns.push_back(column);
    counts_.emplace(std::vector<CodeEvent>(columns.size()),
                    [](vpmu::GuestPhysical at) { return std::optional{at.value() / vpmu::page_size}; });
    counts_->begin(std::move(columns), next, 0);
    counts_->collect(true);
  }
  std::map<std::uint64_t, std::vector<std::uint64_t>> counted() const {
    std::map<std::uint64_t, std::vector<std::uint64_t>> all;
    counts_->visit([&all](const CodePlace& place, std::span<const std::uint64_t> counts) {
      EXPECT_TRUE(all.emplace(place.rip, std::vector<std::uint64_t>{counts.begin(), counts.end()}).second);
    });
    return all;
  }
  std::optional<CodeCounts> counts_;
};
using Counted = std::map<std::uint64_t, std::vector<std::uint64_t>>;

TEST_F(CodeCountsOf, ABlockHasWhatRetiresUntilTheNextBegins) {
  begin();
  const CodeAt first{0x1000, 5}, second{0x2000, 3};
  counts_->begun(first.block, 0);
  counts_->begun(second.block, 5);
  counts_->begun(first.block, 7);  // the second one was left before its end
  counts_->ran(9);
  EXPECT_EQ(counted(), (Counted{{0x1000, {7}}, {0x2000, {2}}}));
  counts_->ran(9);
  EXPECT_EQ(counted(), (Counted{{0x1000, {7}}, {0x2000, {2}}})) << "nothing has run since";
}

TEST_F(CodeCountsOf, NothingIsCountedWhileAnotherTaskRuns) {
  begin();
  const CodeAt code{0x1000, 5};
  counts_->begun(code.block, 0);
  counts_->ran(5);
  counts_->collect(false);
  counts_->begun(code.block, 5);
  counts_->ran(10);
  counts_->ran_elsewhere(0x1000, {});
  counts_->collect(true);
  counts_->begun(code.block, 10);
  counts_->ran(11);
  EXPECT_EQ(counted(), (Counted{{0x1000, {6}}}));
  counts_->clear();
  EXPECT_EQ(counted(), Counted{});
}

// Compiled code: blocks that ran to their ends.
TEST_F(CodeCountsOf, CompiledBlocksAreTheSame) {
  for (const bool has_next : {false, true}) {
    Next next;
    begin({}, has_next ? &next : nullptr);
    const CodeAt first{0x1000, 5}, second{0x2000, 3};
    const std::array blocks{&first.block, &second.block, &first.block};
    SeenBlocks all{.blocks = blocks, .addresses = {}, .pages = pages_of_none(), .now = 0, .line = 0, .branch = {}};
    counts_->saw_blocks(all);
    counts_->ran(all.now);
    EXPECT_EQ(all.now, 13U);
    EXPECT_EQ(all.branch.at, 0x1000U);
    EXPECT_EQ(counted(), (Counted{{0x1000, {10}}, {0x2000, {3}}}));
    if (has_next) {
      EXPECT_EQ(next.told,
                "block 1000 at 0; line 1000; branch to 2000 at 5; block 2000 at 5; line 2000; branch to 1000 at 8; "
                "block 1000 at 8; line 1000; ");
    }
  }
}

// The target of a branch is known when the next block begins; what it counts is of the block that it ends.
TEST_F(CodeCountsOf, ABranchIsCountedAtItsOwnBlock) {
  Next next;
  begin({{.total = [&next](std::uint64_t) { return next.branches; }, .user = true, .kernel = true}}, &next);
  const CodeAt first{0x1000, 5}, second{0x2000, 3};
  const std::array seen{Seen{.begun = {.block = &first.block, .now = 0}},
                        Seen{.branch = {.kind = Seen::Kind::branch, .now = 5, .at = 0x1000, .to = 0x2000}},
                        Seen{.begun = {.block = &second.block, .now = 5}}};
  counts_->saw(seen);
  counts_->ran(8);
  EXPECT_EQ(counted(), (Counted{{0x1000, {5, 1}}, {0x2000, {3, 0}}}));
  EXPECT_EQ(next.told, "block 1000 at 0; branch to 2000 at 5; block 2000 at 5; ");
  const std::array blocks{&first.block, &second.block};
  SeenBlocks all{.blocks = blocks, .addresses = {}, .pages = pages_of_none(), .now = 8, .line = 0, .branch = {}};
  counts_->saw_blocks(all);
  EXPECT_EQ(counted().at(0x1000), (std::vector<std::uint64_t>{10, 2}));
}

TEST_F(CodeCountsOf, LevelsAreToldApartByTheAddress) {
  begin({{.total = [](std::uint64_t now) { return 2 * now; }, .user = true},
         {.total = [](std::uint64_t now) { return 3 * now; }, .kernel = true},
         {}});
  const CodeAt program{0x1000, 5}, system{kernel, 2};
  counts_->begun(program.block, 0);
  counts_->begun(system.block, 5);
  counts_->ran(7);
  counts_->ran_elsewhere(kernel, {});
  EXPECT_EQ(counted(), (Counted{{0x1000, {5, 10, 0, 0}}, {kernel, {3, 0, 6, 0}}}));
  EXPECT_TRUE(counts_->tells(1));
  EXPECT_FALSE(counts_->tells(3));
}

// The cycles of an exception are the kernel's, those of a system instruction its own: the counters have them so.
TEST_F(CodeCountsOf, WhatPassesBetweenRunsIsOfTheLevelThatGoesOn) {
  std::uint64_t cycles = 0;
  begin({{.total = [&cycles](std::uint64_t) { return cycles; }, .user = true, .kernel = true}});
  const CodeAt program{0x1000, 5}, more{0x2000, 5}, system{kernel, 2};
  counts_->begun(program.block, 0);
  cycles = 10;
  counts_->ran(5);
  cycles = 11;
  counts_->begun(more.block, 5);
  cycles = 20;
  counts_->ran(10);
  cycles = 120;
  counts_->begun(system.block, 10);
  cycles = 125;
  counts_->ran(12);
  cycles = 225;
  counts_->ran_elsewhere(kernel, 12);
  counts_->begun(program.block, 12);
  cycles = 230;
  counts_->ran(17);
  EXPECT_EQ(counted(), (Counted{{0x1000, {10, 16}}, {0x2000, {5, 9}}, {kernel, {3, 205}}}));
}

// Another program may have other code at the same address. Both are known by what is in the page.
TEST_F(CodeCountsOf, ProgramsAreToldApartByTheirPages) {
  begin();
  const CodeAt mine{0x1000, 5}, theirs{0x1000, 5, other_page}, again{0x5000, 5};
  counts_->begun(mine.block, 0);
  counts_->begun(theirs.block, 5);
  counts_->begun(again.block, 10);
  counts_->ran(15);
  counts_->ran_elsewhere(0x1004, {});
  std::map<CodePlace, std::uint64_t> all;
  counts_->visit([&all](const CodePlace& place, std::span<const std::uint64_t> counts) { all[place] = counts[0]; });
  ASSERT_EQ(all.size(), 4U);
  const auto first = all.begin()->first, second = std::next(all.begin())->first;
  EXPECT_EQ(first.rip, second.rip);
  EXPECT_NE(first.page, second.page);
  const auto moved = std::prev(all.end())->first, single = std::prev(all.end(), 2)->first;
  EXPECT_EQ(moved.rip, 0x5000U);
  EXPECT_EQ(single.rip, 0x1004U);
  EXPECT_EQ(single.page == first.page || single.page == second.page, true);
  EXPECT_EQ(moved.page == first.page || moved.page == second.page, true) << "the page is the same";
}

}  // namespace
}  // namespace vmm::test
