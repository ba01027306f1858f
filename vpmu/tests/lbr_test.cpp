#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "pebs_session.hpp"

// Last branch records. SDM 3B 17.4.8, 17.9 (call stack), 17.10 (LBR_INFO).

namespace vpmu::test {
namespace {

class Lbr : public ::testing::Test {
 protected:
  PebsSession s;

  void SetUp() override { s.write(msr::IA32_DEBUGCTL, 1); }

  void branch(unsigned k, BranchOutcome b = {.kind = BranchKind::near_rel_jmp, .taken = true},
              std::uint64_t cycles = 1) {
    s.retire({.ip = from(k), .next_ip = to(k), .branch = b, .cycles = cycles});
  }
  static GuestLinear from(unsigned k) { return GuestLinear{0x1000 + 16ULL * k}; }
  static GuestLinear to(unsigned k) { return GuestLinear{0x9000 + 16ULL * k}; }
  [[nodiscard]] std::uint64_t tos() const { return s.read(msr::MSR_LASTBRANCH_TOS); }
  [[nodiscard]] std::uint64_t entry_from(unsigned i) const { return s.read(msr::MSR_LASTBRANCH_0_FROM_IP + i); }
  [[nodiscard]] std::uint64_t entry_to(unsigned i) const { return s.read(msr::MSR_LASTBRANCH_0_TO_IP + i); }
  [[nodiscard]] std::uint64_t info(unsigned i) const { return s.read(msr::MSR_LBR_INFO_0 + i); }
};

TEST_F(Lbr, TakenBranchGoesToTheEntryAfterTheTop) {
  branch(7);
  EXPECT_EQ(tos(), 1U);
  EXPECT_EQ(entry_from(1), from(7).value());
  EXPECT_EQ(entry_to(1), to(7).value());
  EXPECT_EQ(entry_from(0), 0U);
}

TEST_F(Lbr, TopOfStackWrapsAfter32Entries) {
  for (unsigned k = 1; k <= 33; ++k) branch(k);
  EXPECT_EQ(tos(), 1U);
  EXPECT_EQ(entry_from(1), from(33).value());
  EXPECT_EQ(entry_from(0), from(32).value());
  EXPECT_EQ(entry_from(2), from(2).value());
}

TEST_F(Lbr, BranchNotTakenAndOtherInstructionsLeaveNoEntry) {
  branch(1, {.kind = BranchKind::conditional, .taken = false});
  branch(2, {});
  EXPECT_EQ(tos(), 0U);
}

// Rule Z5; SDM 3B 17.10 for the cycles.
TEST_F(Lbr, WhatPassedInBulkIsAsRetiredOneByOne) {
  const BranchOutcome missed{.kind = BranchKind::conditional, .taken = true, .mispredicted = true};
  const std::array run{PassedBranch{.branch = {.from = from(1), .to = to(1), .what = missed}, .cycles = 5},
                       PassedBranch{.branch = {.from = from(2), .to = to(2), .what = missed}, .cycles = 7}};
  s.pmu.record_branches({.branches = run, .cycles_behind = 11}, s.env);
  EXPECT_EQ(tos(), 2U);
  EXPECT_EQ(entry_from(1), from(1).value());
  EXPECT_EQ(entry_to(2), to(2).value());
  EXPECT_EQ(info(1), bit(63) | 5U);
  EXPECT_EQ(info(2), bit(63) | 7U);
  branch(3, missed, 1);
  EXPECT_EQ(info(3), bit(63) | 12U) << "and the cycles behind the last one";
}

// The same if branches without effect are missing: those that the plan's filter excludes, and all before the last ones.
TEST_F(Lbr, WhatHasNoEffectMayBeMissing) {
  std::mt19937_64 random{9};
  unsigned left_out = 0, call_stacks = 0;
  for (unsigned n = 0; n < 300; ++n) {
    PebsSession whole, part;
    for (PebsSession* const each : {&whole, &part}) {
      each->write(msr::IA32_DEBUGCTL, 1);
      each->write(msr::MSR_LBR_SELECT, n % 4 == 0 ? 0 : n * 37 & 0x3FF);
    }
    const std::uint8_t cpl = n % 2 == 0 ? 0 : 3;
    for (unsigned run = 0; run < 3; ++run) {
      const LbrFilter filter = part.pmu.plan().lbr_filter;
      std::vector<PassedBranch> all, some;
      for (auto count = static_cast<unsigned>(random() % 80), k = 0U; k < count; ++k) {
        const auto kind = static_cast<BranchKind>(1 + random() % 6);
        all.push_back(
            {.branch = {.from = from(k), .to = to(k), .what = {.kind = kind, .taken = true, .target_cpl = cpl}},
             .cycles = 1 + random() % 9});
      }
      std::uint64_t cycles = 0;
      for (const PassedBranch& each : all) {
        cycles += each.cycles;
        if (!filter.records(each.branch.what.kind, cpl)) continue;
        some.push_back({.branch = each.branch, .cycles = std::exchange(cycles, 0)});
      }
      const std::size_t missing = filter.call_stack || some.size() <= filter.depth ? 0 : some.size() - filter.depth;
      some.erase(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(missing));
      whole.pmu.record_branches({.branches = all, .cycles_behind = 3}, whole.env);
      part.pmu.record_branches({.branches = some, .missing = missing, .cycles_behind = cycles + 3}, part.env);
      left_out += missing != 0;
      call_stacks += filter.call_stack;
    }
    EXPECT_EQ(whole.read(msr::MSR_LASTBRANCH_TOS), part.read(msr::MSR_LASTBRANCH_TOS)) << n;
    for (unsigned i = 0; i < 32; ++i)
      for (const MsrIndex index : {msr::MSR_LASTBRANCH_0_FROM_IP, msr::MSR_LASTBRANCH_0_TO_IP, msr::MSR_LBR_INFO_0})
        ASSERT_EQ(whole.read(index + i), part.read(index + i)) << n << ' ' << index.value() << ' ' << i;
  }
  EXPECT_GT(left_out, 50U);
  EXPECT_GT(call_stacks, 50U);
}

// While nothing is recorded no branch has an effect.
TEST_F(Lbr, TakesNoneWhileItIsOff) {
  EXPECT_TRUE(s.pmu.plan().lbr_filter.records(BranchKind::near_ret, 3));
  EXPECT_EQ(s.pmu.plan().lbr_filter.depth, 32);
  s.write(msr::IA32_DEBUGCTL, 0);
  EXPECT_FALSE(s.pmu.plan().lbr_filter.records(BranchKind::near_ret, 3));
}

// Rule Z5.
TEST_F(Lbr, RecordsOnlyWhileEnabledAndNotFrozen) {
  s.write(msr::IA32_DEBUGCTL, 0);
  branch(1);
  EXPECT_EQ(tos(), 0U);
  s.write(msr::IA32_DEBUGCTL, 1);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, lbr_frz);
  branch(2);
  EXPECT_EQ(tos(), 0U);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, lbr_frz);
  branch(3);
  EXPECT_EQ(tos(), 1U);
}

// SDM 3B tables 17-11 to 17-13: a set bit keeps its kind out, and only its kind.
TEST_F(Lbr, EachSelectBitFiltersItsKindOnly) {
  constexpr std::array kinds{BranchKind::conditional, BranchKind::near_rel_call, BranchKind::near_ind_call,
                             BranchKind::near_ret,    BranchKind::near_ind_jmp,  BranchKind::near_rel_jmp,
                             BranchKind::far};
  for (unsigned i = 0; i < kinds.size(); ++i)
    for (unsigned filter = 0; filter < kinds.size(); ++filter) {
      s.write(msr::MSR_LBR_SELECT, bit(2 + filter));
      const std::uint64_t before = tos();
      branch(i, {.kind = kinds[i], .taken = true});
      EXPECT_EQ(tos() != before, i != filter) << "kind " << i << " filter " << filter;
    }
}

// SDM 3B table 17-11: the level is that of the branch's target.
TEST_F(Lbr, LevelFiltersLookAtTheTarget) {
  for (const std::uint8_t target : std::initializer_list<std::uint8_t>{0, 3})
    for (const std::uint64_t select : {1U, 2U}) {
      s.write(msr::MSR_LBR_SELECT, select);
      const std::uint64_t before = tos();
      branch(1, {.kind = BranchKind::far, .taken = true, .target_cpl = target});
      EXPECT_EQ(tos() == before, (target == 0) == (select == 1)) << unsigned{target} << " select " << select;
    }
}

// SDM 3B table 17-16: cycles since the last entry, saturating; bit 63 mispredicted.
TEST_F(Lbr, InfoHoldsCyclesSinceTheLastEntryAndTheMisprediction) {
  branch(1, {.kind = BranchKind::near_rel_jmp, .taken = true}, 5);
  EXPECT_EQ(info(1), 5U);
  s.retire(Retirement{.cycles = 10});
  branch(2, {.kind = BranchKind::conditional, .taken = false}, 3);
  branch(3, {.kind = BranchKind::conditional, .taken = true, .mispredicted = true}, 2);
  EXPECT_EQ(info(2), bit(63) | 15U);
  branch(4, {.kind = BranchKind::near_rel_jmp, .taken = true}, 0x1'0000);
  EXPECT_EQ(info(3), 0xFFFFU);
  EXPECT_EQ(entry_from(3), from(4).value()) << "no flags in the address of this format";
}

// SDM 3B 17.9: calls push, returns pop, and a popped entry is gone.
TEST_F(Lbr, CallStackModePopsTheCallOnReturn) {
  s.write(msr::MSR_LBR_SELECT, 0x3C4);  // EN_CALLSTACK; jumps, conditional and far branches kept out
  branch(1, {.kind = BranchKind::near_rel_call, .taken = true});
  branch(2, {.kind = BranchKind::near_ind_call, .taken = true, .mispredicted = true});
  EXPECT_EQ(tos(), 2U);
  branch(3, {.kind = BranchKind::near_ret, .taken = true});
  EXPECT_EQ(tos(), 1U);
  EXPECT_EQ(entry_from(2), 0U);
  EXPECT_EQ(entry_to(2), 0U);
  EXPECT_EQ(info(2), 0U);
  EXPECT_EQ(entry_from(1), from(1).value());
  branch(4, {.kind = BranchKind::near_rel_jmp, .taken = true});
  EXPECT_EQ(tos(), 1U);
}

// A call to the next instruction only gets its own address: nothing returns from it.
TEST_F(Lbr, CallStackLeavesOutCallsToTheNextInstruction) {
  for (const BranchKind kind : {BranchKind::near_rel_call, BranchKind::near_ind_call}) {
    s.write(msr::MSR_LBR_SELECT, 0x3C4);
    branch(1, {.kind = kind, .taken = true, .to_next = true});
    EXPECT_EQ(tos(), 0U);
  }
  s.write(msr::MSR_LBR_SELECT, 0);
  branch(2, {.kind = BranchKind::near_rel_call, .taken = true, .to_next = true});
  EXPECT_EQ(tos(), 1U) << "a branch as any other without the call stack";
}

TEST_F(Lbr, CallStackPopWrapsBelowZero) {
  s.write(msr::MSR_LBR_SELECT, 0x3C4);
  branch(1, {.kind = BranchKind::near_ret, .taken = true});
  EXPECT_EQ(tos(), 31U);
}

// Rule Z12: the trigger's own branch is in the stack before the assist freezes it.
TEST_F(Lbr, BranchOfTheTriggerIsRecordedBeforeTheThresholdFreeze) {
  s.write(msr::IA32_DEBUGCTL, 1 | freeze_lbrs);
  s.set_threshold(PebsSession::buffer);
  s.start_pebs(0, {.event = 0xC4, .umask = 0x20}, 1);
  branch(1);
  branch(2);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.status() & lbr_frz, lbr_frz);
  EXPECT_EQ(entry_from(static_cast<unsigned>(tos())), from(2).value());
  branch(3);
  EXPECT_EQ(tos(), 2U);
}

TEST_F(Lbr, RecordBranchServesSourcesWithoutRetirements) {
  s.pmu.record_branch({.from = from(5), .to = to(5), .what = {.kind = BranchKind::near_rel_jmp, .taken = true}}, s.env);
  EXPECT_EQ(entry_from(1), from(5).value());
  EXPECT_EQ(entry_to(1), to(5).value());
}

}  // namespace
}  // namespace vpmu::test
