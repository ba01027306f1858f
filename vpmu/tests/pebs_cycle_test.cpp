#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Overflow arms, the next event triggers, the assist records and reloads: rules P1 to P23.

namespace vpmu::test {
namespace {

using S = PebsSession;

// Rule P1: with counter and reset value -P, record k is for event k * (P + 1).
TEST(PebsCycle, PeriodIsOneMoreThanTheReloadValue) {
  for (const unsigned period : {1U, 2U, 5U}) {
    S s;
    s.start_pebs(0, loads, period);
    s.run(1, 4 * (period + 1));
    ASSERT_EQ(s.records(), 4U);
    for (unsigned k = 1; k <= 4; ++k) EXPECT_EQ(s.eventing_ip(k - 1), S::a(k * (period + 1)).value());
  }
}

// Rule P1: the first *qualifying* event, other instructions pass.
TEST(PebsCycle, InstructionsWithoutTheEventDoNotTrigger) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  s.retire(s.plain(2));
  s.retire(s.store(3));
  EXPECT_EQ(s.records(), 0U);
  s.run(4, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(4).value());
}

// Rule P3: RIP of a taken branch is its target.
TEST(PebsCycle, RipOfATakenBranchIsItsTarget) {
  S s;
  s.start_pebs(0, {.event = 0xC4, .umask = 0x20}, 1);
  for (unsigned k = 1; k <= 2; ++k) {
    Retirement r = s.plain(k);
    r.next_ip = GuestLinear{0x40'0000 + k};
    r.branch = {.kind = BranchKind::near_rel_jmp, .taken = true};
    s.retire(r);
  }
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::rip], 0x40'0002U);
  EXPECT_EQ(s.eventing_ip(0), S::a(2).value());
}

// Rule P6: counters that have not overflowed keep value and status, with PEBS and without.
TEST(PebsCycle, AssistLeavesOtherCountersAlone) {
  S s;
  s.start_pebs(0, loads, 3);
  s.start_pebs(1, loads, 100);
  s.start(2, loads, 2);
  s.run(1, 4);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.pmc(1), minus(96));
  EXPECT_EQ(s.pmc(2), 2U);
  EXPECT_EQ(s.status(), 4U);
}

// Rule P8: bits of counters without PEBS do not show in APPLICABLE_COUNTERS, though GLOBAL_STATUS has them.
TEST(PebsCycle, ApplicableCountersDoNotFollowGlobalStatus) {
  S s;
  s.start(0, loads, 1);
  s.start_pebs(2, loads, 1);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, bit(1) | bit(33));
  s.run(1, 2);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.applicable(0), 4U);
}

// Rule P16: the reload overwrites what the armed counter has counted.
TEST(PebsCycle, ArmedCounterCountsOnUntilTheReload) {
  S s{PmuPolicies{.skid_events = 3}};
  s.start_pebs(0, loads, 1);
  s.run(1, 4);
  EXPECT_EQ(s.pmc(0), 3U);
  s.run(5, 5);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.pmc(0), minus(1));
}

// Rule P17.
TEST(PebsCycle, ResetValueIsReadAtEachAssistAndCutToTheCounter) {
  S s;
  s.start_pebs(0, loads, 1);
  s.set_reset(0, 0xFFFF'FFFF'FFFF'FFF0);
  s.run(1, 2);
  EXPECT_EQ(s.pmc(0), 0xFFFF'FFFF'FFF0U);
  s.set_reset(0, 0);
  s.run(3, 19);
  EXPECT_EQ(s.records(), 2U);
  EXPECT_EQ(s.pmc(0), 0U) << "0 is loaded like any value";
}

// Rule P17: each counter has its own field.
TEST(PebsCycle, EachCounterHasItsOwnResetValue) {
  for (unsigned i = 0; i < 4; ++i) {
    S s;
    s.start_pebs(i, loads, 1);
    for (unsigned n = 0; n < 4; ++n) s.set_reset(n, 0x1000 + n);
    s.run(1, 2);
    EXPECT_EQ(s.pmc(i), 0x1000U + i);
  }
}

// Rule P18: what Linux programs for cycles:p counts cycles, and the first retirement after arming triggers.
TEST(PebsCycle, InvertedMaskFormCountsCyclesAndTriggersOnAnyRetirement) {
  S s;
  s.start_pebs(0, cycles_p, 100);
  Retirement r = s.plain(1);
  r.cycles = 60;
  s.retire(r);
  EXPECT_EQ(s.status(), 0U);
  s.retire(r);
  EXPECT_EQ(s.status(), 1U) << "120 cycles";
  Retirement next = s.plain(2);
  next.cycles = 0;
  s.retire(next);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(2).value());
}

// Rule P18: INV without CMASK does nothing, also not to the trigger.
TEST(PebsCycle, InvertWithoutAMaskLeavesTheTriggerAlone) {
  S s;
  Select form = loads;
  form.inv = true;
  s.start_pebs(0, form, 1);
  s.run(1, 1);
  s.retire(s.plain(2));
  EXPECT_EQ(s.records(), 0U);
  s.run(3, 3);
  EXPECT_EQ(s.records(), 1U);
}

// Rule P19: an event that is not precise arms, never triggers, and still interrupts.
TEST(PebsCycle, ImpreciseEventInterruptsAndRecordsNothing) {
  S s;
  s.start_pebs(0, with_interrupt(cache_misses), 1);
  for (unsigned k = 1; k <= 4; ++k) {
    Retirement r = s.load(k);
    r.load.level = HitLevel::dram;
    s.retire(r);
  }
  EXPECT_EQ(s.status(), 1U);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.records(), 0U);
  EXPECT_FALSE(s.pmu.plan().any_armed()) << "nothing to wait for";
}

// Rule P20: writing the select or either alias of the counter disarms.
TEST(PebsCycle, ReprogrammingDisarms) {
  struct Row {
    const char* what;
    void (*reprogram)(S&);
  };
  for (const Row& row : {Row{"PERFEVTSEL", [](S& s) { s.write(msr::IA32_PERFEVTSEL0, loads.raw()); }},
                         Row{"PMC", [](S& s) { s.write(msr::IA32_PMC0, 0); }},
                         Row{"A_PMC", [](S& s) { s.write(msr::IA32_A_PMC0, 0); }}}) {
    S s;
    s.start_pebs(0, loads, 1);
    s.run(1, 1);
    row.reprogram(s);
    EXPECT_FALSE(s.pmu.plan().any_armed()) << row.what;
    s.run(2, 3);
    EXPECT_EQ(s.records(), 0U) << row.what;
    EXPECT_EQ(s.status(), 1U) << row.what;
  }
}

// Rule P20: GLOBAL_CTRL, an unrelated counter, or enabling another PEBS counter does not disarm.
TEST(PebsCycle, OtherWritesKeepTheArming) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0);
  s.run(2, 3);
  EXPECT_EQ(s.records(), 0U) << "stopped: no event, no trigger";
  s.write(msr::IA32_PERFEVTSEL0 + 1, loads.raw());
  s.write(msr::IA32_A_PMC0 + 1, 5);
  s.write(msr::IA32_PEBS_ENABLE, 3);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, S::all_counters);
  s.run(4, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(4).value());
}

// Rule P20. Linux stops and restarts the counters of an auto-reload event like this; here the counter overflows just
// before they are stopped.
TEST(PebsCycle, PebsEnableOffAndOnKeepsTheArming) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, 0);
  s.write(msr::IA32_PEBS_ENABLE, 0);
  EXPECT_FALSE(s.pmu.plan().any_armed()) << "nothing to wait for";
  s.write(msr::IA32_PERF_GLOBAL_CTRL, S::all_counters);
  s.run(2, 2);
  EXPECT_EQ(s.records(), 0U) << "it is off";
  s.write(msr::IA32_PEBS_ENABLE, 1);
  EXPECT_TRUE(s.pmu.plan().any_armed());
  s.run(3, 3);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
}

// Rule P20: IA32_DS_AREA is read at the assist.
TEST(PebsCycle, DsAreaIsReadAtTheAssist) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  const GuestLinear other{0xFFFF'8000'0009'0000};
  s.env.map(other, page_size);
  for (std::uint64_t offset = 0x20; offset < 0x60; offset += 8)
    s.env.poke(other + offset, s.env.peek(S::ds_area + offset));
  s.write(msr::IA32_DS_AREA, other.value());
  s.run(2, 2);
  EXPECT_EQ(s.index(), S::buffer) << "the old area is not touched";
  EXPECT_EQ(s.env.peek(other + 0x28), (S::buffer + S::size).value());
}

// Rule P21: the filter holds for the trigger; the record is written whatever comes next.
TEST(PebsCycle, TriggerObeysTheLevelFilter) {
  S s;
  Select user_only = loads;
  user_only.os = false;
  s.start_pebs(0, user_only, 1);
  const auto retire_at = [&](unsigned k, std::uint8_t cpl) {
    Retirement r = s.load(k);
    r.cpl = cpl;
    s.retire(r);
  };
  retire_at(1, 3);
  retire_at(2, 0);
  EXPECT_EQ(s.records(), 0U);
  retire_at(3, 3);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
}

// Rule P22.
TEST(PebsCycle, OutsideLongModeRegistersAre32BitAndTheUpperEightAreZero) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  Retirement r = s.load(2);
  PebsRegisters registers;
  registers.value.fill(0xFFFF'FFFF'1234'5678);
  r.registers = &registers;
  r.long_mode = false;
  r.ip = GuestLinear{0x1000};
  r.next_ip = GuestLinear{0x1002};
  s.retire(r);
  ASSERT_EQ(s.records(), 1U);
  const PebsRecord record = s.record(0);
  for (const Slot slot :
       {Slot::rflags, Slot::rax, Slot::rbx, Slot::rcx, Slot::rdx, Slot::rsi, Slot::rdi, Slot::rbp, Slot::rsp})
    EXPECT_EQ(record[slot], 0x1234'5678U) << unsigned(slot);
  for (const Slot slot : {Slot::r8, Slot::r9, Slot::r10, Slot::r11, Slot::r12, Slot::r13, Slot::r14, Slot::r15})
    EXPECT_EQ(record[slot], 0U) << unsigned(slot);
  EXPECT_EQ(record[Slot::rip], 0x1002U);
}

// Rule P23: without a memory facility the memory fields are 0.
TEST(PebsCycle, MemoryFieldsAreZeroForAnEventWithoutAnAddress) {
  S s;
  s.start_pebs(0, instructions, 1);
  s.run(1, 2);
  ASSERT_EQ(s.records(), 1U);
  for (const Slot slot : {Slot::data_address, Slot::data_source, Slot::latency}) EXPECT_EQ(s.record(0)[slot], 0U);
}

// The embedder may leave the registers out of retirements that cannot be recorded; a record then shows 0 and no stale
// values.
TEST(PebsCycle, RecordWithoutRegistersShowsZeros) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  Retirement r = s.load(2);
  r.registers = nullptr;
  s.retire(r);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::rax], 0U);
  EXPECT_EQ(s.record(0)[Slot::rip], S::a(3).value());
}

// Rule D1: every condition of precise distribution; without one it is an ordinary PEBS event.
TEST(PreciseDistribution, NeedsPmc1TheEventAndNoModifier) {
  const auto first_record = [](unsigned counter, Select form) {
    S s;
    s.start_pebs(counter, form, 3);
    s.run(1, 6);
    return s.records() == 0 ? 0 : s.eventing_ip(0);
  };
  EXPECT_EQ(first_record(1, precise_distribution), S::a(3).value());
  EXPECT_EQ(first_record(0, precise_distribution), S::a(4).value());
  EXPECT_EQ(first_record(1, instructions), S::a(4).value());
  EXPECT_EQ(first_record(1, {.event = 0xC0, .umask = 0x01, .any = true}), S::a(4).value());
}

// Rule D4: cycles:ppp, C0/01 INV=1 CMASK=16 on PMC1, is not precise distribution.
TEST(PreciseDistribution, InvertedMaskFormIsOrdinary) {
  S s;
  s.start_pebs(1, {.event = 0xC0, .umask = 0x01, .cmask = 16, .inv = true}, 3);
  s.run(1, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(4).value()) << "one cycle each: overflow at a3, first retirement after it";
}

// Rules D2, Q5.
TEST(PreciseDistribution, ItsInterruptComesWithTheRecord) {
  S s;
  s.start_pebs(1, with_interrupt(precise_distribution), 3);
  s.run(1, 2);
  EXPECT_EQ(s.env.pmis, 0U);
  s.run(3, 3);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.status(), 0U);
}

}  // namespace
}  // namespace vpmu::test
