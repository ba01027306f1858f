#include <gtest/gtest.h>

#include "pebs_session.hpp"

// The worked vectors V-3 to V-15 with Skylake's numbers: record format 3, 200 bytes, APPLICABLE_COUNTERS at 90H.
// older_generations_test.cpp has those of other formats and generations.

namespace vpmu::test {
namespace {

using S = PebsSession;

// V-3: format 3, every field of the record. Rules P1, P3, P4, P6, P8, P9, T4, S3.
TEST(WorkedVector, V3RecordsTheLoadAfterTheOverflowingOne) {
  S s;
  s.start_pebs(0, loads, 3);
  s.run(1, 3);
  EXPECT_EQ(s.status(), 1U) << "overflow at a3";
  EXPECT_EQ(s.records(), 0U) << "arming writes nothing";
  s.env.tsc_now = 0x1234'5678;
  s.run(4, 4);

  ASSERT_EQ(s.records(), 1U);
  const PebsRecord r = s.record(0);
  EXPECT_EQ(r[Slot::rip], S::a(5).value());
  EXPECT_EQ(r[Slot::eventing_ip], S::a(4).value());
  EXPECT_EQ(r[Slot::rax], S::loaded_by(4)) << "registers after the instruction";
  EXPECT_EQ(r[Slot::rflags], 0x246U);
  EXPECT_EQ(r[Slot::r15], 0x1515'1515'1515'1515U);
  EXPECT_EQ(r[Slot::status], 1U);
  EXPECT_EQ(r[Slot::data_address], S::data_of(4).value());
  EXPECT_EQ(r[Slot::data_source], 0U);
  EXPECT_EQ(r[Slot::latency], 0U);
  EXPECT_EQ(r[Slot::tx_abort_info], 0U);
  EXPECT_EQ(r[Slot::tsc], 0x1234'5678U);

  EXPECT_EQ(s.pmc(0), minus(3));
  EXPECT_EQ(s.status(), 0U);
  EXPECT_EQ(s.index(), S::buffer + 0xC8);
  s.run(5, 8);
  ASSERT_EQ(s.records(), 2U);
  EXPECT_EQ(s.record(1)[Slot::rip], S::a(9).value()) << "overflow at a7, record at a8";
  EXPECT_EQ(s.env.pmis, 0U);
}

// V-4: rules D1, D2.
TEST(WorkedVector, V4PreciseDistributionRecordsTheOverflowingInstruction) {
  S s;
  s.start_pebs(1, precise_distribution, 3);
  s.run(1, 6);
  ASSERT_EQ(s.records(), 2U);
  EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
  EXPECT_EQ(s.record(0)[Slot::rip], S::a(4).value());
  EXPECT_EQ(s.eventing_ip(1), S::a(6).value()) << "the period is exact";
  EXPECT_EQ(s.applicable(0), 2U);
}

// V-5: rules P10, Q9.
TEST(WorkedVector, V5TwoTriggersOfOneInstructionShareARecord) {
  S s;
  s.start_pebs(0, loads, 3);
  s.start_pebs(1, loads, 3);
  s.run(1, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(4).value());
  EXPECT_EQ(s.applicable(0), 3U);
  EXPECT_EQ(s.pmc(0), minus(3));
  EXPECT_EQ(s.pmc(1), minus(3));
  EXPECT_EQ(s.status(), 0U);
}

// V-6: rule P12 as the manual has it.
TEST(WorkedVector, V6OverlapServesEveryOverflowedCounter) {
  S s;
  s.start_pebs(0, loads, 3);
  s.start_pebs(1, loads, 4);
  s.run(1, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.applicable(0), 3U);
  EXPECT_EQ(s.pmc(0), minus(3));
  EXPECT_EQ(s.pmc(1), minus(4));
  EXPECT_EQ(s.status(), 0U);
  s.run(5, 5);
  EXPECT_EQ(s.records(), 1U) << "counter 1 has been disarmed";
}

/// PMC1 overflows with its interrupt on, without PEBS, at the instruction that triggers PMC2's record.
void start_v7(S& s) {
  s.start(1, with_interrupt(loads), 4);
  s.start_pebs(2, loads, 3);
}

// V-7: rules Q1, Q2, Q8.
TEST(WorkedVector, V7OverflowPmiOfTheLowerCounterIsPostedBeforeTheRecord) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  start_v7(s);
  s.run(1, 3);
  EXPECT_EQ(s.status(), 4U);
  s.run(4, 4);
  ASSERT_EQ(s.records(), 1U) << "frozen, but the record of this boundary is written";
  EXPECT_EQ(s.eventing_ip(0), S::a(4).value());
  EXPECT_EQ(s.applicable(0), 4U);
  EXPECT_EQ(s.status(), 2U | ctr_frz) << "what the handler reads";
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.env.log.back().kind, Access::Kind::pmi) << "delivered after all assists of the boundary";
}

// V-8: rules Q1, Q2.
TEST(WorkedVector, V8RecordOfTheLowerCounterPrecedesTheOverflowPmi) {
  S s;
  s.start_pebs(1, loads, 3);
  s.start(2, with_interrupt(loads), 4);
  s.run(1, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.applicable(0), 2U);
  EXPECT_EQ(s.status(), 4U);
  EXPECT_EQ(s.env.pmis, 1U);
  EXPECT_EQ(s.env.log.back().kind, Access::Kind::pmi);
}

// V-9: rules P15, Q4, Q5, Q6. Of the two requests the local APIC delivers one: LVTPC is masked then (rules V2, V4).
TEST(WorkedVector, V9PebsWithInterruptAsksTwice) {
  S s;
  s.start_pebs(0, with_interrupt(loads), 3);
  s.set_threshold(S::buffer + S::size);
  s.run(1, 3);
  EXPECT_EQ(s.env.pmis, 0U) << "the overflow interrupt waits for the assist";
  s.run(4, 4);
  EXPECT_EQ(s.records(), 1U);
  EXPECT_EQ(s.env.pmis, 2U);
  EXPECT_EQ(s.status(), ovf_buffer) << "the assist has cleared bit 0";
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ovf_buffer);
  EXPECT_EQ(s.status(), 0U) << "what a second handler would read";
}

// V-10: rules F2, F3, F4, F6.
TEST(WorkedVector, V10AFullBufferDropsWithoutAnInterrupt) {
  for (const std::uint64_t slack : {0U, 1U}) {  // both forms of the absolute maximum, rule F3
    S s;
    s.set_ds({.absolute_maximum = S::buffer + (2 * S::size + slack)});
    s.start_pebs(0, loads, 3);
    s.run(1, 12);
    EXPECT_EQ(s.records(), 2U);
    EXPECT_EQ(s.eventing_ip(1), S::a(8).value());
    EXPECT_EQ(s.index(), S::buffer + 2 * S::size);
    EXPECT_EQ(s.status(), 1U | ovf_buffer) << "not cleared; the bit is rule F2's";
    EXPECT_EQ(s.pmc(0), 1U) << "runs on";
    EXPECT_EQ(s.env.pmis, 0U);
    EXPECT_EQ(s.statistics().records_dropped_full, 1U);
    s.run(13, 20);
    EXPECT_EQ(s.statistics().records_dropped_full, 1U) << "disarmed";
  }
}

// V-11: rule P13.
TEST(WorkedVector, V11AcknowledgingTheStatusDoesNotDisarm) {
  S s;
  s.start_pebs(0, loads, 3);
  s.run(1, 3);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, 1);
  EXPECT_EQ(s.status(), 0U);
  s.run(4, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.applicable(0), 1U);
}

// V-12, Skylake half: rules Z1, Z4, C3.
TEST(WorkedVector, V12StreamlinedFreezeHoldsTheCountersUntilTheStatusIsReset) {
  S s;
  s.write(msr::IA32_DEBUGCTL, freeze_counters);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0xB);
  s.write(msr::IA32_FIXED_CTR0, minus(2));
  s.start(0, instructions, 1000);
  s.run(1, 2);
  EXPECT_EQ(s.status(), bit(32) | ctr_frz);
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_CTRL), S::all_counters);
  EXPECT_EQ(s.env.pmis, 1U);
  s.run(3, 9);
  EXPECT_EQ(s.fixed(0), 0U);
  EXPECT_EQ(s.pmc(0), minus(998));
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ctr_frz);
  s.run(10, 10);
  EXPECT_EQ(s.fixed(0), 1U);
  EXPECT_EQ(s.pmc(0), minus(997));
}

// V-13 in Skylake's form: rules L1, L2, L4, L6, L7.
TEST(WorkedVector, V13LoadLatencyCountsLoadsStrictlyOverTheThreshold) {
  S s;
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 30);
  s.start(3, load_latency, 2);
  s.write(msr::IA32_PEBS_ENABLE, 0x8'0000'0008);
  unsigned k = 0;
  for (const std::uint16_t cycles : std::initializer_list<std::uint16_t>{31, 30, 100, 200}) {
    Retirement r = s.load(++k);
    r.load.latency = cycles;
    r.load.level = HitLevel::dram;
    s.retire(r);
    if (cycles == 30) {
      EXPECT_EQ(s.pmc(3), minus(1)) << "30 is not over 30";
    }
    if (cycles == 100) {
      EXPECT_EQ(s.status(), 8U);
    }
  }
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::latency], 200U);
  EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(4).value());
  EXPECT_EQ(s.record(0)[Slot::data_source], 0xAU) << "local DRAM on Skylake client";
  EXPECT_EQ(s.pmc(3), minus(2));
}

// V-15: rules F5, O6.
TEST(WorkedVector, V15EveryRecordAtOrPastTheThresholdAsksAgain) {
  S s;
  s.set_threshold(S::buffer + S::size);
  s.start_pebs(0, loads, 3);
  s.run(1, 4);
  EXPECT_EQ(s.status(), ovf_buffer);
  EXPECT_EQ(s.env.pmis, 1U);
  s.run(5, 8);
  EXPECT_EQ(s.records(), 2U);
  EXPECT_EQ(s.env.pmis, 2U);
}

}  // namespace
}  // namespace vpmu::test
