// A PMU that a hypervisor has restricted to less than its generation has: PmuConfig::limits.
#include <gtest/gtest.h>

#include "recording_env.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::test {
namespace {

namespace pc = reg::perf_capabilities;

constexpr std::uint64_t os_instructions = 0x4200C0;

PmuConfig skylake(const PmuLimits& limits) { return {.generation = Generation::skylake, .limits = limits}; }

bool reads(const Pmu& pmu, MsrIndex index) { return pmu.rdmsr(index).status == MsrStatus::ok; }

TEST(Limits, WithoutAnyThePmuIsTheGenerations) {
  for (const GenerationDesc* generation : all_generations()) {
    const PmuConfig config{.generation = generation->generation};
    const Pmu pmu{config};
    EXPECT_EQ(pmu.gp_counters(), generation->gp_counters) << generation->name;
    EXPECT_EQ(pmu.generation().fixed_counters, generation->fixed_counters) << generation->name;
    EXPECT_EQ(pmu.perf_capabilities(), perf_capabilities(*generation)) << generation->name;
  }
}

TEST(Limits, MoreThanTheGenerationHasChangesNothing) {
  const Pmu pmu{skylake({.version = 5, .gp_counters = 8, .fixed_counters = 4})};
  EXPECT_EQ(pmu.gp_counters(), 4U);
  EXPECT_EQ(pmu.generation().fixed_counters, 3U);
  EXPECT_TRUE(reads(pmu, msr::IA32_PERF_GLOBAL_INUSE));
}

// SDM 3B 18.2.5: a counter that CPUID does not report exists at none of its addresses.
TEST(Limits, CountersBeyondAreNotThere) {
  for (unsigned n = 0; n <= 4; ++n) {
    Pmu pmu{skylake({.gp_counters = static_cast<std::uint8_t>(n)})};
    EXPECT_EQ(pmu.rdmsr(msr::IA32_PERF_GLOBAL_CTRL).value, low_bits(n)) << "those that there are, at reset";
    EXPECT_EQ(pmu.wrmsr(msr::IA32_PERF_GLOBAL_CTRL, bit(n)), MsrStatus::gp) << n;
    for (unsigned i = 0; i < 4; ++i) {
      EXPECT_EQ(reads(pmu, msr::IA32_PMC0 + i), i < n) << i;
      EXPECT_EQ(reads(pmu, msr::IA32_A_PMC0 + i), i < n) << i;
      EXPECT_EQ(reads(pmu, msr::IA32_PERFEVTSEL0 + i), i < n) << i;
      EXPECT_EQ(pmu.rdpmc(i, 0, false).has_value(), i < n) << i;
      const bool pebs = pmu.wrmsr(msr::IA32_PEBS_ENABLE, bit(i)) == MsrStatus::ok;
      EXPECT_EQ(pebs, i < n) << i;
    }
  }
}

TEST(Limits, FixedCountersBeyondAreNotThere) {
  for (unsigned n = 0; n <= 3; ++n) {
    const Pmu pmu{skylake({.fixed_counters = static_cast<std::uint8_t>(n)})};
    for (unsigned i = 0; i < 3; ++i) {
      EXPECT_EQ(reads(pmu, msr::IA32_FIXED_CTR0 + i), i < n) << i;
      EXPECT_EQ(pmu.rdpmc(rdpmc_fixed_counters | i, 0, false).has_value(), i < n) << i;
      EXPECT_EQ(pmu.check_wrmsr(msr::IA32_FIXED_CTR_CTRL, 1ULL << (4 * i)) == MsrStatus::ok, i < n) << i;
      EXPECT_EQ(pmu.check_wrmsr(msr::IA32_PERF_GLOBAL_CTRL, bit(32 + i)) == MsrStatus::ok, i < n) << i;
    }
  }
}

// SDM 3B 18.2: what each version has added.
TEST(Limits, AnOlderVersionHasLess) {
  for (unsigned version = 0; version <= 4; ++version) {
    SCOPED_TRACE(version);
    Pmu pmu{skylake({.version = static_cast<std::uint8_t>(version)})};
    EXPECT_EQ(reads(pmu, msr::IA32_PMC0), version >= 1);
    EXPECT_EQ(reads(pmu, msr::IA32_PERFEVTSEL0), version >= 1);
    EXPECT_EQ(pmu.rdpmc(0, 0, false).has_value(), version >= 1);
    for (const MsrIndex index : {msr::IA32_FIXED_CTR0, msr::IA32_FIXED_CTR_CTRL, msr::IA32_PERF_GLOBAL_STATUS,
                                 msr::IA32_PERF_GLOBAL_CTRL, msr::IA32_PERF_GLOBAL_OVF_CTRL})
      EXPECT_EQ(reads(pmu, index), version >= 2) << std::hex << index.value();
    EXPECT_EQ(pmu.wrmsr(msr::IA32_DEBUGCTL, reg::debugctl::FREEZE_PERFMON_ON_PMI::mask) == MsrStatus::ok, version >= 2);
    EXPECT_EQ(pmu.wrmsr(msr::IA32_PERFEVTSEL0, os_instructions | reg::perfevtsel::ANY::mask) == MsrStatus::ok,
              version >= 3);
    EXPECT_EQ(pmu.wrmsr(msr::IA32_FIXED_CTR_CTRL, 0x5) == MsrStatus::ok, version >= 3) << "AnyThread";
    EXPECT_EQ(reads(pmu, msr::IA32_PERF_GLOBAL_INUSE), version >= 4);
    EXPECT_EQ(pmu.wrmsr(msr::IA32_PERF_GLOBAL_STATUS_SET, 1) == MsrStatus::ok, version >= 4);
    EXPECT_EQ(pmu.wrmsr(msr::IA32_PERF_GLOBAL_OVF_CTRL, reg::global_status::CTR_FRZ::mask) == MsrStatus::ok,
              version >= 4);
    const std::uint64_t misc_enable = pmu.rdmsr(msr::IA32_MISC_ENABLE).value;
    EXPECT_EQ(reg::misc_enable::PERFMON_AVAILABLE::test(misc_enable), version >= 1);
    EXPECT_EQ(reg::misc_enable::PEBS_UNAVAILABLE::test(misc_enable), version == 0);
  }
}

// SDM 3B 18.2.1.1: without GLOBAL_CTRL the select alone enables its counter.
TEST(Limits, TheFirstVersionCountsByItsSelectsAlone) {
  Pmu pmu{skylake({.version = 1})};
  RecordingEnv env;
  ASSERT_EQ(pmu.wrmsr(msr::IA32_PERFEVTSEL0, os_instructions), MsrStatus::ok);
  pmu.retire({}, env);
  EXPECT_EQ(pmu.rdpmc(0, 0, false), 1U);
}

// SDM 3B 17.4.7: the first three versions freeze by clearing GLOBAL_CTRL.
TEST(Limits, BeforeTheFourthVersionAPmiClearsGlobalCtrl) {
  for (const std::uint8_t version : {std::uint8_t{3}, std::uint8_t{4}}) {
    Pmu pmu{skylake({.version = version})};
    RecordingEnv env;
    ASSERT_EQ(pmu.wrmsr(msr::IA32_DEBUGCTL, reg::debugctl::FREEZE_PERFMON_ON_PMI::mask), MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(msr::IA32_A_PMC0, low_bits(48)), MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(msr::IA32_PERFEVTSEL0, os_instructions | reg::perfevtsel::INT::mask), MsrStatus::ok);
    pmu.retire({}, env);
    EXPECT_EQ(pmu.rdmsr(msr::IA32_PERF_GLOBAL_CTRL).value == 0, version == 3);
    EXPECT_EQ(reg::global_status::CTR_FRZ::test(pmu.rdmsr(msr::IA32_PERF_GLOBAL_STATUS).value), version == 4);
  }
}

TEST(Limits, CapabilitiesReadAsTold) {
  for (const std::uint64_t told : {std::uint64_t{0}, std::uint64_t{pc::FW_WRITE::mask}}) {
    const Pmu pmu{skylake({.perf_capabilities = told})};
    EXPECT_EQ(pmu.rdmsr(msr::IA32_PERF_CAPABILITIES).value, told);
    EXPECT_EQ(reads(pmu, msr::IA32_A_PMC0), told != 0) << "SDM 3B 18.2.5";
    EXPECT_TRUE(reads(pmu, msr::IA32_PMC0));
  }
}

TEST(Limits, WithoutAFormatOfRecordsThereIsNoPebs) {
  Pmu pmu{skylake({.perf_capabilities = perf_capabilities(describe(Generation::skylake)) & ~pc::PEBS_FMT::mask})};
  EXPECT_EQ(pmu.wrmsr(msr::IA32_PEBS_ENABLE, 1), MsrStatus::gp);
  EXPECT_TRUE(reg::misc_enable::PEBS_UNAVAILABLE::test(pmu.rdmsr(msr::IA32_MISC_ENABLE).value));
  EXPECT_TRUE(reads(pmu, msr::MSR_LASTBRANCH_TOS)) << "the LBR has a format of its own";
}

TEST(Limits, WithoutAFormatOfTheLbrThereIsNone) {
  Pmu pmu{skylake({.perf_capabilities = perf_capabilities(describe(Generation::skylake)) & ~pc::LBR_FMT::mask})};
  for (const MsrIndex index : {msr::MSR_LBR_SELECT, msr::MSR_LASTBRANCH_TOS, msr::MSR_LASTBRANCH_0_FROM_IP,
                               msr::MSR_LASTBRANCH_0_TO_IP, msr::MSR_LBR_INFO_0})
    EXPECT_EQ(pmu.rdmsr(index).status, MsrStatus::gp) << std::hex << index.value();
  RecordingEnv env;
  ASSERT_EQ(pmu.wrmsr(msr::IA32_DEBUGCTL, reg::debugctl::LBR::mask), MsrStatus::ok);
  pmu.retire({.branch = {.kind = BranchKind::near_rel_jmp, .taken = true}}, env);
  EXPECT_EQ(pmu.state().lbr_tos, 0U);
  EXPECT_EQ(pmu.wrmsr(msr::IA32_PEBS_ENABLE, 1), MsrStatus::ok) << "PEBS has a format of its own";
}

// KVM offers full-width writes on every host: a VMM may give them to a Nehalem, too.
TEST(Limits, FullWidthWritesMayBeMoreThanTheGenerationHas) {
  const PmuConfig told{.generation = Generation::nehalem, .limits = {.perf_capabilities = pc::FW_WRITE::mask}};
  Pmu pmu{told};
  EXPECT_EQ(pmu.wrmsr(msr::IA32_A_PMC0, low_bits(48)), MsrStatus::ok);
  EXPECT_EQ(pmu.rdmsr(msr::IA32_PMC0).value, low_bits(48));
  EXPECT_EQ(Pmu{{.generation = Generation::nehalem}}.rdmsr(msr::IA32_A_PMC0).status, MsrStatus::unknown);
}

TEST(Limits, CapabilitiesThatMayBeTold) {
  for (const GenerationDesc* generation : all_generations()) {
    const std::uint64_t all = perf_capabilities(*generation);
    for (const std::uint64_t good : {std::uint64_t{0}, all, all & ~pc::LBR_FMT::mask, all & ~pc::PEBS_FMT::mask,
                                     all | pc::FW_WRITE::mask, std::uint64_t{pc::FW_WRITE::mask}})
      EXPECT_TRUE(may_tell_capabilities(*generation, good)) << generation->name << std::hex << good;
    for (const std::uint64_t bad : {all ^ 1, all ^ pc::PEBS_FMT::make(8), all | bit(14), bit(63), pc::LBR_FMT::make(1)})
      EXPECT_FALSE(may_tell_capabilities(*generation, bad)) << generation->name << std::hex << bad;
  }
}

// A snapshot may have no contents for counters that do not exist.
TEST(Limits, ASnapshotOfMoreIsRefused) {
  Pmu whole{skylake({})};
  const PmuSnapshot fresh = whole.snapshot();
  EXPECT_EQ(Pmu{skylake({.gp_counters = 2})}.restore(fresh), RestoreStatus::wrong_generation);
  ASSERT_EQ(whole.wrmsr(msr::IA32_FIXED_CTR0 + 2, 5), MsrStatus::ok);
  EXPECT_EQ(Pmu{skylake({.fixed_counters = 2})}.restore(whole.snapshot()), RestoreStatus::illegal_value);
  EXPECT_EQ(Pmu{skylake({.fixed_counters = 3})}.restore(whole.snapshot()), RestoreStatus::ok);
}

// Version 1 has no GLOBAL_CTRL: counters that are off there could never be started again.
TEST(Limits, ASnapshotOfTheFirstVersionHasItsCountersOn) {
  Pmu first{skylake({.version = 1})};
  PmuSnapshot snapshot = first.snapshot();
  EXPECT_EQ(first.restore(snapshot), RestoreStatus::ok);
  snapshot.state.global_ctrl = 0;
  EXPECT_EQ(first.restore(snapshot), RestoreStatus::illegal_value);
}

}  // namespace
}  // namespace vpmu::test
