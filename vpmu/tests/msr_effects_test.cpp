#include <gtest/gtest.h>

#include "pebs_session.hpp"

// What WRMSR changes beyond its own bits.

namespace vpmu::test {
namespace {

using S = PebsSession;

// SDM 3B 18.2.5: bits 31:0 are sign-extended from bit 31 to the counter's width, bits 63:32 are ignored.
TEST(CounterAlias, WriteAtC1SignExtendsFromBit31AndIgnoresTheUpperHalf) {
  S s;
  for (unsigned i = 0; i < 4; ++i) {
    s.write(msr::IA32_PMC0 + i, 0x8000'0000);
    EXPECT_EQ(s.read(msr::IA32_PMC0 + i), 0xFFFF'8000'0000U);
    s.write(msr::IA32_PMC0 + i, 0x7FFF'FFFF);
    EXPECT_EQ(s.read(msr::IA32_PMC0 + i), 0x7FFF'FFFFU);
    s.write(msr::IA32_PMC0 + i, 0xDEAD'BEEF'0000'0001);
    EXPECT_EQ(s.read(msr::IA32_PMC0 + i), 1U);
  }
}

// SDM 3B 18.2.5: both addresses are one counter.
TEST(CounterAlias, FullWidthAliasSharesTheCounter) {
  S s;
  for (unsigned i = 0; i < 4; ++i) {
    s.write(msr::IA32_A_PMC0 + i, 0xFFFF'FFFF'FF00 + i);
    EXPECT_EQ(s.read(msr::IA32_PMC0 + i), 0xFFFF'FFFF'FF00U + i);
    s.write(msr::IA32_PMC0 + i, 0xFFFF'FFFF);
    EXPECT_EQ(s.read(msr::IA32_A_PMC0 + i), 0xFFFF'FFFF'FFFFU);
  }
}

// Rule O8.
TEST(CounterWrite, FromHighToLowIsNoOverflow) {
  S s;
  s.start(0, with_interrupt(instructions), 1);
  s.write(msr::IA32_A_PMC0, 0);
  s.write(msr::IA32_FIXED_CTR0, 0xFFFF'FFFF'FFFF);
  s.write(msr::IA32_FIXED_CTR0, 0);
  EXPECT_EQ(s.status(), 0U);
  EXPECT_EQ(s.env.pmis, 0U);
}

// Rule O10: no bit of it can be written, on no processor, whatever figure 18-20 says of bits 62 and 63.
TEST(GlobalStatus, IsReadOnly) {
  for (const GenerationDesc* g : all_generations()) {
    S s{PmuConfig{.generation = g->generation}};
    s.write(msr::IA32_PERFEVTSEL0, instructions.raw());
    s.write_counter(0, minus(1));
    s.retire(s.plain(1));
    const std::uint64_t status = s.status();
    ASSERT_EQ(status, 1U) << g->name;
    for (const std::uint64_t value : {std::uint64_t{0}, status, bit(62), bit(63), bit(63) | status, ~std::uint64_t{0}})
      EXPECT_EQ(s.pmu.wrmsr(msr::IA32_PERF_GLOBAL_STATUS, value), MsrStatus::gp) << g->name << ' ' << value;
    EXPECT_EQ(s.status(), status) << g->name;
    s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, status);
    EXPECT_EQ(s.status(), 0U) << g->name;
  }
}

// SDM 3B 18.2.4.2: 1s set, 0s leave.
TEST(GlobalStatusSet, AddsItsBitsAndKeepsTheOthers) {
  S s;
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, bit(0) | bit(62));
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, bit(33));
  EXPECT_EQ(s.status(), bit(0) | bit(33) | bit(62));
}

// Rule Z9: status bits alone raise no interrupt and arm nothing.
TEST(GlobalStatusSet, OverflowBitNeitherInterruptsNorArms) {
  S s;
  s.start_pebs(0, with_interrupt(loads), 100);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, 1);
  s.run(1, 3);
  EXPECT_EQ(s.records(), 0U);
  EXPECT_EQ(s.env.pmis, 0U);
}

// SDM 3B 18.2.4.1, rule O6: clears exactly the bits written.
TEST(GlobalOvfCtrl, ClearsExactlyTheBitsWritten) {
  constexpr std::uint64_t all = 0x6C00'0007'0000'000F;
  for (unsigned b = 0; b < 64; ++b) {
    if ((all & bit(b)) == 0) continue;
    S s;
    s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, all);
    s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, bit(b));
    EXPECT_EQ(s.status(), all & ~bit(b));
  }
}

// SDM 3B 18.2.4.3: one bit per programmed event, any enable bit of a fixed counter.
TEST(GlobalInuse, ShowsProgrammedCounters) {
  S s;
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), 0U);
  s.write(msr::IA32_PERFEVTSEL0 + 2, Select{.event = 0xC0, .enabled = false}.raw());
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), bit(2));
  s.write(msr::IA32_PERFEVTSEL0 + 2, Select{.event = 0, .umask = 1}.raw());
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), 0U);
  for (const std::uint64_t enable : {0x1U, 0x2U}) {
    s.write(msr::IA32_FIXED_CTR_CTRL, enable << 4);
    EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), bit(33));
  }
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x4);
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), 0U) << "AnyThread alone enables nothing";
}

// SDM 3B 18.2.4.3: bit 63 for an interrupt of a counter of either kind, or PEBS.
TEST(GlobalInuse, ShowsTheInterrupt) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.interrupt = true, .enabled = false}.raw());
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), bit(63));
  s.write(msr::IA32_PERFEVTSEL0 + 1, 0);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x800);
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), bit(63));
  s.write(msr::IA32_FIXED_CTR_CTRL, 0);
  s.write(msr::IA32_PEBS_ENABLE, 8);
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), bit(63));
  s.write(msr::IA32_PEBS_ENABLE, bit(32));
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_INUSE), 0U) << "load latency without PEBS is no interrupt";
}

// SDM 3A table 9-1: RESET clears everything, whatever was there.
TEST(Reset, BringsEveryRegisterBack) {
  S s;
  const PmuSnapshot fresh = Pmu{PmuConfig{}}.snapshot();
  s.start_pebs(0, with_interrupt(loads), 2);
  s.write(msr::IA32_DEBUGCTL, 0x1801);
  s.run(1, 2);
  s.pmu.record_branch({.from = S::a(1), .to = S::a(2), .what = {.kind = BranchKind::near_rel_jmp, .taken = true}},
                      s.env);
  s.pmu.reset();
  const PmuSnapshot after = s.pmu.snapshot();
  EXPECT_EQ(std::memcmp(&fresh, &after, sizeof fresh), 0);
}

// SDM 3A table 9-1, rule F14: INIT keeps counters and selects, and stops DS and debug store.
TEST(Init, KeepsCountersAndStopsPebs) {
  S s;
  s.start_pebs(0, loads, 2);
  s.write(msr::IA32_DEBUGCTL, 0x1801);
  s.run(1, 2);
  s.pmu.init();
  EXPECT_EQ(s.read(msr::IA32_DEBUGCTL), 0U);
  EXPECT_EQ(s.read(msr::IA32_PEBS_ENABLE), 0U);
  EXPECT_EQ(s.pmc(0), 0U);
  EXPECT_EQ(s.read(msr::IA32_PERFEVTSEL0), loads.raw());
  s.run(3, 3);
  EXPECT_EQ(s.records(), 0U) << "no longer armed";
  EXPECT_EQ(s.pmc(0), 1U);
}

TEST(MsrStatistics, CountWritesAndFaults) {
  Pmu pmu{PmuConfig{}};
  EXPECT_EQ(pmu.wrmsr(msr::IA32_DS_AREA, 0), MsrStatus::ok);
  EXPECT_EQ(pmu.wrmsr(msr::IA32_DS_AREA, bit(63)), MsrStatus::gp);
  EXPECT_EQ(pmu.wrmsr(msr::IA32_PERFEVTSEL0 + 5, 0), MsrStatus::gp);
  EXPECT_EQ(pmu.statistics().msr_writes, 1U);
  EXPECT_EQ(pmu.statistics().msr_faults, 2U);
}

}  // namespace
}  // namespace vpmu::test
