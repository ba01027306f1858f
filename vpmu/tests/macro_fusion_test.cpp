#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Rule P2a: a compare and the branch that it is fused with retire as one.

namespace vpmu::test {
namespace {

using S = PebsSession;

constexpr GuestLinear target{0x40'0000};
constexpr std::uint64_t from_l3 = 30;

/// a_k, which loads, and the branch behind it, which is taken.
Retirement pair(S& s, unsigned k) {
  Retirement r = s.load(k);
  r.load.level = HitLevel::l3;
  r.load.latency = from_l3;
  r.branch_offset = 2;
  r.next_ip = target;
  r.branch = {.kind = BranchKind::conditional, .taken = true};
  return r;
}

void expect_of_pair(const S& s, unsigned k, bool is_of_branch = false) {
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::eventing_ip], S::a(is_of_branch ? k + 1 : k).value());
  EXPECT_EQ(s.record(0)[Slot::rip], target.value());
}

// SDM 3B table 18-43.
TEST(MacroFusion, TheRecordIsTheComparesWithRipBehindTheBranch) {
  S s;
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  s.start(3, load_latency, 1);
  s.write(msr::IA32_PEBS_ENABLE, both_enables(3));
  s.run(1, 1);
  s.retire(pair(s, 2));
  expect_of_pair(s, 2);
  EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(2).value());
  EXPECT_EQ(s.record(0)[Slot::latency], from_l3);
  EXPECT_NE(s.record(0)[Slot::data_source], 0U);
}

TEST(MacroFusion, EitherPartTriggersAndHasTheEventingIp) {
  for (const Select event : {loads, conditional_branches}) {
    S s;
    s.start_pebs(0, event, 1);
    s.retire(pair(s, 1));
    EXPECT_EQ(s.records(), 0U);
    s.retire(pair(s, 2));
    expect_of_pair(s, 2, event.event == conditional_branches.event);
  }
  S s;
  s.start_pebs(0, conditional_branches, 1);
  s.start_pebs(1, loads, 1);
  s.retire(pair(s, 1));
  s.retire(pair(s, 2));
  expect_of_pair(s, 2);
}

// What the compare arms, the branch does not trigger: both have retired.
TEST(MacroFusion, IsTwoInstructionsOfWhichNoneTriggersTheOther) {
  S s;
  s.start_pebs(0, instructions, 1);
  s.retire(pair(s, 1));
  EXPECT_EQ(s.records(), 0U);
  EXPECT_EQ(s.pmc(0), 1U);
  s.run(5, 5);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::eventing_ip], S::a(5).value());
}

// Rule D2.
TEST(MacroFusion, ThatOverflowsAnywhereHasThePreciselyDistributedRecord) {
  for (const std::uint64_t period : {2ULL, 3ULL}) {
    S s;
    s.start_pebs(1, precise_distribution, period);
    s.run(1, 1);
    s.retire(pair(s, 2));
    expect_of_pair(s, 2);
  }
}

TEST(MacroFusion, TheBranchStackHasTheBranch) {
  S s;
  s.write(msr::IA32_DEBUGCTL, 1);
  s.retire(pair(s, 1));
  const std::uint64_t tos = s.read(msr::MSR_LASTBRANCH_TOS);
  EXPECT_EQ(s.read(msr::MSR_LASTBRANCH_0_FROM_IP + static_cast<std::uint32_t>(tos)) << 16 >> 16,
            S::a(2).value() << 16 >> 16);
  EXPECT_EQ(s.read(msr::MSR_LASTBRANCH_0_TO_IP + static_cast<std::uint32_t>(tos)), target.value());
}

}  // namespace
}  // namespace vpmu::test
