#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Rules Z1 to Z12 in Skylake's streamlined form. SDM 3B 17.4.7, 18.2.4.1.

namespace vpmu::test {
namespace {

using S = PebsSession;

std::uint64_t frozen(const S& s) { return s.status() & (ctr_frz | lbr_frz); }

// Rules Z1, Z4: each DEBUGCTL bit freezes its own half.
TEST(Freeze, EachControlBitSetsItsOwnStatusBit) {
  for (const auto& [control, status] :
       {std::pair{std::uint64_t{0}, std::uint64_t{0}}, std::pair{freeze_counters, ctr_frz},
        std::pair{freeze_lbrs, lbr_frz}, std::pair{freeze_counters | freeze_lbrs, ctr_frz | lbr_frz}}) {
    S s;
    s.write(msr::IA32_DEBUGCTL, control | 1);
    s.start(0, with_interrupt(instructions), 1);
    s.run(1, 1);
    EXPECT_EQ(frozen(s), status);
    EXPECT_EQ(s.read(msr::IA32_DEBUGCTL), control | 1) << "LBR stays enabled";
    EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_CTRL), S::all_counters);
  }
}

// Rule Z1: without its interrupt an overflow does not freeze.
TEST(Freeze, OverflowWithoutInterruptDoesNotFreeze) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters | freeze_lbrs);
  s.start(0, instructions, 1);
  s.run(1, 1);
  EXPECT_EQ(frozen(s), 0U);
}

// Rule Z1: a PEBS overflow does not freeze, its threshold does.
TEST(Freeze, PebsFreezesAtTheThresholdAndNotBefore) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.set_threshold(S::buffer + 2 * S::size);
  s.start_pebs(0, loads, 1);
  s.run(1, 3);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(frozen(s), 0U);
  s.run(4, 4);
  EXPECT_EQ(s.records(), 2U) << "the record of the threshold is complete, rule Z7";
  EXPECT_EQ(frozen(s), ctr_frz);
  s.run(5, 9);
  EXPECT_EQ(s.records(), 2U);
}

// Rule Q5 with Z1: a PEBS counter's own overflow interrupt freezes when it is asked for, at the assist.
TEST(Freeze, OverflowPmiOfAPebsCounterFreezesAtTheAssist) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.start_pebs(0, with_interrupt(loads), 1);
  s.run(1, 1);
  EXPECT_EQ(frozen(s), 0U);
  s.run(2, 2);
  EXPECT_EQ(frozen(s), ctr_frz);
}

// Rule Z6: it acts at the boundary, before any handler could run, so the next instruction does not count.
TEST(Freeze, ActsAtTheBoundaryOfTheOverflow) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.start(0, with_interrupt(instructions), 1);
  s.start(1, instructions, 100);
  s.run(1, 2);
  EXPECT_EQ(s.pmc(1), minus(99)) << "counted with the overflowing instruction, not after it";
}

// Rule Z8.
TEST(Freeze, ArmedCountersStayArmedUntilCountingResumes) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.start_pebs(0, loads, 2);
  s.start(1, with_interrupt(loads), 2);
  s.run(1, 2);
  s.run(3, 5);
  EXPECT_EQ(s.records(), 0U);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ctr_frz | bit(1));
  s.run(6, 6);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(6).value());
}

// Rules Z5, Z9: STATUS_SET freezes like hardware does.
TEST(Freeze, SoftwareMayFreezeThroughStatusSet) {
  S s;
  const auto jump = [&] {
    s.pmu.record_branch({.from = S::a(1), .to = S::a(9), .what = {.kind = BranchKind::near_rel_jmp, .taken = true}},
                        s.env);
  };
  s.write(msr::IA32_DEBUGCTL, 1);
  jump();
  EXPECT_EQ(s.read(msr::MSR_LASTBRANCH_TOS), 1U);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, lbr_frz);
  jump();
  EXPECT_EQ(s.read(msr::MSR_LASTBRANCH_TOS), 1U);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, lbr_frz);
  jump();
  EXPECT_EQ(s.read(msr::MSR_LASTBRANCH_TOS), 2U);
}

// Rule Z11. SDM 3B 17.4.2.
TEST(DebugException, ClearsLbrAndBtfAndKeepsTr) {
  S s;
  s.write(msr::IA32_DEBUGCTL, 0x43);
  s.pmu.on_debug_exception();
  EXPECT_EQ(s.read(msr::IA32_DEBUGCTL), 0x40U);
}

}  // namespace
}  // namespace vpmu::test
