#include <gtest/gtest.h>

#include <ostream>

#include "pebs_session.hpp"

// The worked vectors on the generations before Skylake, and what only these have: precise stores, the legacy freeze.

namespace vpmu::test {
namespace {

using S = PebsSession;
using G = Generation;

struct Older {
  Generation generation;
  Select load_event;
};
void PrintTo(const Older& o, std::ostream* out) { *out << describe(o.generation).name; }

class OlderGeneration : public testing::TestWithParam<Older> {
 protected:
  S s{PmuConfig{.generation = GetParam().generation}};
  Select load_event_{GetParam().load_event};
  [[nodiscard]] bool format2() const { return s.format() == PebsFormat::format2; }
};
INSTANTIATE_TEST_SUITE_P(OneOfEach, OlderGeneration,
                         testing::Values(Older{G::nehalem, nehalem_loads}, Older{G::westmere, nehalem_loads},
                                         Older{G::sandy_bridge, loads}, Older{G::ivy_bridge, loads},
                                         Older{G::haswell, loads}, Older{G::broadwell, loads}),
                         [](const auto& o) { return std::string{describe(o.param.generation).name}; });

// V-1, V-2: rules P1, P3, P6, P7, S3, T4.
TEST_P(OlderGeneration, V1V2RecordsTheLoadAfterTheOverflowingOne) {
  s.start_pebs(0, load_event_, 3);
  s.run(1, 3);
  EXPECT_EQ(s.status(), 1U) << "overflow at a3";
  EXPECT_EQ(s.records(), 0U) << "arming writes nothing";
  s.run(4, 8);
  ASSERT_EQ(s.records(), 2U);
  EXPECT_EQ(s.index(), S::buffer + (format2() ? 2 * 0xC0 : 2 * 0xB0));
  for (const unsigned n : {0U, 1U}) {
    const unsigned at = 4 * (n + 1);
    const PebsRecord r = s.record(n);
    EXPECT_EQ(r[Slot::rip], S::a(at + 1).value());
    EXPECT_EQ(r[Slot::rax], S::loaded_by(at));
    EXPECT_EQ(r[Slot::r15], 0x1515'1515'1515'1515U);
    EXPECT_EQ(r[Slot::status], 1U) << "GLOBAL_STATUS before the assist";
    EXPECT_EQ(r[Slot::eventing_ip], format2() ? S::a(at).value() : 0);
    EXPECT_EQ(r[Slot::data_address], format2() ? S::data_of(at).value() : 0);
    EXPECT_EQ(r[Slot::data_source], 0U);
    EXPECT_EQ(r[Slot::latency], 0U);
    EXPECT_EQ(r[Slot::tx_abort_info], 0U);
  }
  EXPECT_EQ(s.status(), 0U);
  EXPECT_EQ(s.env.pmis, 0U);
}

// Rules P7, P11: the snapshot has the bits of all counters, PEBS or not, fixed ones too.
TEST_P(OlderGeneration, StatusIsTheWholeGlobalStatusBeforeTheAssist) {
  s.start_pebs(0, load_event_, 3);
  s.start(1, instructions, 2);
  s.write(msr::IA32_FIXED_CTR_CTRL, 3);
  s.write(msr::IA32_FIXED_CTR0, minus(1));
  s.run(1, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::status], bit(0) | bit(1) | bit(32));
  EXPECT_EQ(s.status(), bit(1) | bit(32)) << "only what was served is cleared";
}

// V-11: rule P13.
TEST_P(OlderGeneration, V11AnAcknowledgedOverflowStillRecordsWithStatus0) {
  s.start_pebs(0, load_event_, 3);
  s.run(1, 3);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, 1);
  s.run(4, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::status], 0U);
}

// V-12: rules Z2, Z3. GLOBAL_CTRL reads 0 and DEBUGCTL.LBR is off; no status bit shows it, and software sets both
// again.
TEST_P(OlderGeneration, V12FreezeClearsTheEnables) {
  s.write(msr::IA32_DEBUGCTL, freeze_counters | freeze_lbrs | 1);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0xB);
  s.write(msr::IA32_FIXED_CTR0, minus(2));
  s.run(1, 5);
  EXPECT_EQ(s.status(), bit(32));
  EXPECT_EQ(s.read(msr::IA32_PERF_GLOBAL_CTRL), 0U);
  EXPECT_EQ(s.read(msr::IA32_DEBUGCTL), freeze_counters | freeze_lbrs);
  EXPECT_EQ(s.fixed(0), 0U);
  EXPECT_EQ(s.env.pmis, 1U);
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, bit(32));
  s.run(6, 7);
  EXPECT_EQ(s.fixed(0), 0U);
  s.write(msr::IA32_PERF_GLOBAL_CTRL, S::all_counters);
  s.run(8, 8);
  EXPECT_EQ(s.fixed(0), 1U);
}

Retirement slow_locked_load(S& s, unsigned k) {
  Retirement r = s.load(k);
  r.load.latency = 100;
  r.load.level = HitLevel::dram;
  r.load.stlb_miss = r.load.locked = true;
  return r;
}

/// Records of two slow loads with load latency on PMCi.
std::uint64_t latency_records(S& s, Select event, unsigned i) {
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 30);
  s.start(i, event, 1);
  s.write(msr::IA32_PEBS_ENABLE, both_enables(i));
  s.retire(slow_locked_load(s, 1));
  s.retire(slow_locked_load(s, 2));
  return s.records();
}

// Rules L1, L10: the event, and the counters that it works on.
TEST(OlderLoadLatency, HasItsEventAndItsCounters) {
  for (unsigned i = 0; i < 4; ++i)
    for (const Older& o : {Older{G::nehalem, nehalem_load_latency}, Older{G::westmere, nehalem_load_latency},
                           Older{G::sandy_bridge, load_latency}, Older{G::ivy_bridge, load_latency},
                           Older{G::haswell, load_latency}, Older{G::broadwell, load_latency}}) {
      S s{PmuConfig{.generation = o.generation}};
      const bool only_pmc3 = o.generation == G::sandy_bridge || o.generation == G::ivy_bridge;
      EXPECT_EQ(latency_records(s, o.load_event, i), only_pmc3 && i != 3 ? 0U : 1U)
          << describe(o.generation).name << ' ' << i;
    }
}

TEST(OlderLoadLatency, TheEventOfOtherGenerationsIsNone) {
  for (const Older& o : {Older{G::nehalem, load_latency}, Older{G::sandy_bridge, nehalem_load_latency}}) {
    S s{PmuConfig{.generation = o.generation}};
    EXPECT_EQ(latency_records(s, o.load_event, 3), 0U);
    EXPECT_EQ(s.pmc(3), minus(1));
  }
}

// Rule L8: local DRAM is CH before Skylake; Nehalem tells neither STLB misses nor locks.
TEST(OlderLoadLatency, EncodesTheSourceAsItsGeneration) {
  S nehalem{PmuConfig{.generation = G::nehalem}}, westmere{PmuConfig{.generation = G::westmere}},
      broadwell{PmuConfig{.generation = G::broadwell}};
  ASSERT_EQ(latency_records(nehalem, nehalem_load_latency, 0), 1U);
  EXPECT_EQ(nehalem.record(0)[Slot::data_source], 0x0CU);
  EXPECT_EQ(nehalem.record(0)[Slot::latency], 100U);
  EXPECT_EQ(nehalem.record(0)[Slot::data_address], S::data_of(2).value());
  ASSERT_EQ(latency_records(westmere, nehalem_load_latency, 0), 1U);
  EXPECT_EQ(westmere.record(0)[Slot::data_source], 0x3CU);
  ASSERT_EQ(latency_records(broadwell, load_latency, 0), 1U);
  EXPECT_EQ(broadwell.record(0)[Slot::data_source], 0x3CU);
}

// Rules S3, S5: on Haswell and Broadwell, UOPS_RETIRED.ALL records the instruction's data address, and for a store
// whether it hit.
TEST(DataAddressOfUops, IsThatOfTheInstructionsAccess) {
  constexpr Select all_uops{.event = 0xC2, .umask = 0x01};
  for (const Generation generation : {G::haswell, G::broadwell_ep}) {
    S s{PmuConfig{.generation = generation}};
    s.start_pebs(0, all_uops, 1);
    const auto retire_twice = [&s](const Retirement& r) {
      s.retire(r);
      s.retire(r);
    };
    retire_twice(s.load(1));
    retire_twice(s.store(3));
    retire_twice(s.plain(5));
    ASSERT_EQ(s.records(), 3U);
    EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(1).value());
    EXPECT_EQ(s.record(0)[Slot::data_source], 0U);
    EXPECT_EQ(s.record(1)[Slot::data_address], S::data_of(3).value());
    EXPECT_EQ(s.record(1)[Slot::data_source], 1U) << "L1D hit";
    EXPECT_EQ(s.record(2)[Slot::data_address], 0U);
  }
}

// In the form that Linux uses for cycles:p the event belongs to no uop, so that it has no data address (policy).
TEST(DataAddressOfUops, IsNoneOfCycles) {
  S s{PmuConfig{.generation = G::haswell}};
  s.start_pebs(0, {.event = 0xC2, .umask = 0x01, .cmask = 16, .inv = true}, 1);
  s.run(1, 2);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::data_address], 0U);
}

constexpr std::uint64_t ps_en = reg::pebs_enable::PS_EN::mask;

/// Overflows on the first of two stores.
void store_twice(S& s, unsigned counter, std::uint64_t enable, MemAccess second) {
  s.start(counter, precise_store, 1);
  s.write(msr::IA32_PEBS_ENABLE, enable);
  s.retire(s.store(1));
  Retirement r = s.store(2);
  second.address = r.store.address;
  r.store = second;
  s.retire(r);
}

// V-14: rule S1. Loads in between trigger nothing.
TEST(PreciseStore, V14RecordsTheNextStore) {
  for (const Generation generation : {G::sandy_bridge, G::sandy_bridge_ep, G::ivy_bridge, G::ivy_bridge_ep}) {
    S s{PmuConfig{.generation = generation}};
    s.start(3, precise_store, 1);
    s.write(msr::IA32_PEBS_ENABLE, ps_en | bit(3));
    s.retire(s.store(1));
    EXPECT_EQ(s.status(), bit(3));
    s.run(2, 3);
    EXPECT_EQ(s.records(), 0U);
    s.retire(s.store(4));
    ASSERT_EQ(s.records(), 1U);
    const PebsRecord r = s.record(0);
    EXPECT_EQ(r[Slot::rip], S::a(5).value());
    EXPECT_EQ(r[Slot::data_address], S::data_of(4).value());
    EXPECT_EQ(r[Slot::data_source], 1U) << "L1D hit";
    EXPECT_EQ(r[Slot::latency], 0U);
    EXPECT_EQ(r[Slot::status], bit(3));
    EXPECT_EQ(s.pmc(3), minus(1));
  }
}

// Rule S1: bit 0 L1D hit, bit 4 STLB miss, bit 5 locked.
TEST(PreciseStore, StatusTellsTheAccess) {
  struct Row {
    MemAccess access;
    std::uint64_t status;
  };
  for (const Row& row : {Row{{.level = HitLevel::l1}, 0x01}, Row{{.level = HitLevel::l2}, 0x00},
                         Row{{.level = HitLevel::l1, .stlb_miss = true}, 0x11},
                         Row{{.level = HitLevel::dram, .stlb_miss = true, .locked = true}, 0x30}}) {
    S s{PmuConfig{.generation = G::ivy_bridge}};
    store_twice(s, 3, ps_en | bit(3), row.access);
    ASSERT_EQ(s.records(), 1U);
    EXPECT_EQ(s.record(0)[Slot::data_source], row.status);
  }
}

// Rules S1, S2: PMC3 alone, with both bits; else nothing counts.
TEST(PreciseStore, NeedsPmc3AndBothBits) {
  for (unsigned i = 0; i < 4; ++i)
    for (const std::uint64_t enable : {bit(i), ps_en, ps_en | bit(i)}) {
      S s{PmuConfig{.generation = G::sandy_bridge}};
      store_twice(s, i, enable, {.level = HitLevel::l1});
      const bool right = i == 3 && enable == (ps_en | bit(3));
      EXPECT_EQ(s.records(), right ? 1U : 0U) << i << ' ' << std::hex << enable;
      EXPECT_EQ(s.pmc(i), minus(1));
    }
}

// Rule S2: where there are no precise stores the bit is reserved.
TEST(PreciseStore, BitIsReservedElsewhere) {
  for (const GenerationDesc* desc : all_generations()) {
    Pmu pmu{PmuConfig{.generation = desc->generation}};
    EXPECT_EQ(pmu.wrmsr(msr::IA32_PEBS_ENABLE, ps_en), desc->features.precise_store ? MsrStatus::ok : MsrStatus::gp)
        << desc->name;
  }
}

}  // namespace
}  // namespace vpmu::test
