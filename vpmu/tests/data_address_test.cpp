#include <gtest/gtest.h>

#include "pebs_session.hpp"
#include "vpmu/counts.hpp"

// Data address profiling: rules S3 to S5. SDM 3B 18.11.3, tables 18-46, 18-57. And FRONTEND_RETIRED: SDM
// 3B 18.13.1.4, 18.13.1.5.

namespace vpmu::test {
namespace {

using S = PebsSession;

/// The record for `form` of a load that `change` has modified. The instruction before it overflows the counter.
PebsRecord record_of(Select form, void (*change)(Retirement&)) {
  S s;
  s.start_pebs(0, form, 1);
  for (unsigned k = 1; k <= 2; ++k) {
    Retirement r = s.load(k);
    change(r);
    s.retire(r);
  }
  EXPECT_EQ(s.records(), 1U);
  return s.record(0);
}
void add_store(Retirement& r, HitLevel level) {
  r.has_store = true;
  r.store = {.address = GuestLinear{0x5000'0000}, .level = level};
}

// Rule S3: only the address means something for a load.
TEST(DataAddress, LoadEventReportsItsAddressAlone) {
  const PebsRecord r = record_of(loads, [](Retirement& x) {
    x.load.level = HitLevel::dram;
    x.load.latency = 300;
    x.load.stlb_miss = true;
  });
  EXPECT_EQ(r[Slot::data_address], S::data_of(2).value());
  EXPECT_EQ(r[Slot::data_source], 0U);
  EXPECT_EQ(r[Slot::latency], 0U);
}

// Rule S3: bit 0 says whether the store hit the L1D.
TEST(DataAddress, StoreEventReportsTheL1HitBit) {
  const PebsRecord hit = record_of(stores, [](Retirement& x) { add_store(x, HitLevel::l1); });
  EXPECT_EQ(hit[Slot::data_address], 0x5000'0000U);
  EXPECT_EQ(hit[Slot::data_source], 1U);
  EXPECT_EQ(hit[Slot::latency], 0U);
  const PebsRecord miss = record_of(stores, [](Retirement& x) { add_store(x, HitLevel::l2); });
  EXPECT_EQ(miss[Slot::data_source], 0U);
}

// Rule S4: of an instruction with both, the event chooses.
TEST(DataAddress, TheEventChoosesBetweenLoadAndStore) {
  const auto both = [](Retirement& x) { add_store(x, HitLevel::l1); };
  EXPECT_EQ(record_of(loads, both)[Slot::data_address], S::data_of(2).value());
  EXPECT_EQ(record_of(loads, both)[Slot::data_source], 0U);
  EXPECT_EQ(record_of(stores, both)[Slot::data_address], 0x5000'0000U);
}

// Rule S3: every event of the family that the table marks.
TEST(DataAddress, EveryMarkedMemoryEventReportsAnAddress) {
  for (const auto& [event, umask] : {std::pair{0xD0, 0x11}, {0xD0, 0x21}, {0xD0, 0x41}, {0xD0, 0x81}, {0xD1, 0x02}}) {
    const PebsRecord r = record_of(
        {.event = static_cast<std::uint8_t>(event), .umask = static_cast<std::uint8_t>(umask)}, [](Retirement& x) {
          x.load.level = HitLevel::l2;
          x.load.stlb_miss = x.load.locked = x.load.split = true;
        });
    EXPECT_EQ(r[Slot::data_address], S::data_of(2).value()) << std::hex << umask;
  }
  for (const int umask : {0x12, 0x42, 0x82}) {
    const PebsRecord r = record_of({.event = 0xD0, .umask = static_cast<std::uint8_t>(umask)}, [](Retirement& x) {
      add_store(x, HitLevel::l1);
      x.store.stlb_miss = x.store.split = true;
    });
    EXPECT_EQ(r[Slot::data_address], 0x5000'0000U) << std::hex << umask;
    EXPECT_EQ(r[Slot::data_source], 1U) << std::hex << umask;
  }
}

/// The record that a row's event makes of a load, a store, or an instruction that does both: an access that matches any
/// event.
PebsRecord record_of_row(const GenerationDesc& g, const EventDesc& row, bool loads, bool stores, bool store_hits) {
  S s{PmuConfig{.generation = g.generation}};
  s.start_pebs(0, {.event = row.code, .umask = row.umask}, 1);
  const AccessPattern of = describe(row.counts).accesses;
  for (unsigned k = 1; k <= 2; ++k) {
    Retirement r = s.load(k);
    r.has_load = loads;
    r.load.locked = r.load.split = true;
    if (of.tlb != TlbMiss::any) r.load.dtlb_miss = r.load.stlb_miss = true;
    for (unsigned level = 0; level < hit_level_count; ++level)
      if ((of.levels >> level & 1) != 0) r.load.level = static_cast<HitLevel>(level);
    if (stores) add_store(r, store_hits ? HitLevel::l1 : HitLevel::l2);
    r.store.split = true;
    r.store.dtlb_miss = r.store.stlb_miss = of.tlb != TlbMiss::any;
    s.retire(r);
  }
  EXPECT_EQ(s.records(), 1U) << g.name << ' ' << row.name;
  return s.record(0);
}

// Rules S3 to S5 for each event of each generation that has data addresses: 98H has the load's or the store's, and bit
// 0 of A0H tells a store that hit the L1D where the event's row says so, and for UOPS_RETIRED.ALL. SDM 3B tables 18-46,
// 18-57.
TEST(DataAddress, EveryEventOfEveryGenerationHasItsFields) {
  unsigned events = 0, with_bit = 0, of_all_uops = 0;
  for (const GenerationDesc* const g : all_generations()) {
    if (!g->features.data_la) continue;
    for (const EventDesc& row : g->events) {
      const bool any_uop = is_any_retired_uop(row.counts);
      const AccessPattern of = describe(row.counts).accesses;
      const bool loads = any_uop || of.loads, stores = any_uop || of.stores;
      if (!row.data_la || row.cmask != 0 || row.edge || !(loads || stores)) continue;
      ++events;
      of_all_uops += any_uop ? 1 : 0;
      with_bit += stores && (row.l1_hit_indication || any_uop) ? 1 : 0;
      if (loads) {
        const PebsRecord r = record_of_row(*g, row, true, false, false);
        EXPECT_EQ(r[Slot::data_address], S::data_of(2).value()) << g->name << ' ' << row.name;
        EXPECT_EQ(r[Slot::data_source] | r[Slot::latency], 0U) << g->name << ' ' << row.name;
      }
      for (const bool hits : {false, true}) {
        if (!stores) continue;
        for (const bool loads_too : {false, true}) {
          const PebsRecord r = record_of_row(*g, row, loads_too, true, hits);
          EXPECT_EQ(r[Slot::data_address], 0x5000'0000U) << g->name << ' ' << row.name;
          EXPECT_EQ(r[Slot::data_source], hits && (row.l1_hit_indication || any_uop) ? 1U : 0U)
              << g->name << ' ' << row.name;
        }
      }
    }
  }
  EXPECT_GT(events, 80U);
  EXPECT_GT(with_bit, 20U);
  EXPECT_EQ(of_all_uops, 7U) << "Haswell, Broadwell, Skylake and their servers";
}

// SDM 3B table 18-57: MEM_INST_RETIRED.ANY of a store, and UOPS_RETIRED.ALL, on Skylake.
TEST(DataAddress, SkylakesAnyAccessAndAnyUopShowAStore) {
  for (const Select form : {Select{.event = 0xD0, .umask = 0x83}, Select{.event = 0xC2, .umask = 0x01}}) {
    const PebsRecord r = record_of(form, [](Retirement& x) {
      x.has_load = false;
      add_store(x, HitLevel::l1);
    });
    EXPECT_EQ(r[Slot::data_address], 0x5000'0000U) << std::hex << form.raw();
    EXPECT_EQ(r[Slot::data_source], 1U) << std::hex << form.raw();
  }
}

// Rules P10, L6, S3: two facilities in one record; the lowest counter's fills the fields.
TEST(DataAddress, LowestTriggerWithAFacilityFillsTheFields) {
  for (const bool latency_first : {false, true}) {
    S s;
    const unsigned latency = latency_first ? 0 : 3;
    const unsigned address = latency_first ? 3 : 0;
    s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
    s.start(latency, load_latency, 1);
    s.start(address, loads, 1);
    s.write(msr::IA32_PEBS_ENABLE, 0x9 | bit(32 + latency));
    s.run(1, 2);
    ASSERT_EQ(s.records(), 1U);
    EXPECT_EQ(s.applicable(0), 9U);
    EXPECT_EQ(s.record(0)[Slot::latency], latency_first ? 4U : 0U);
  }
}

struct FrontendRow {
  std::uint64_t selection;
  void (*happens)(FrontendOutcome&);
  void (*does_not)(FrontendOutcome&);
};
const FrontendRow frontend_rows[] = {
    {0x01, [](FrontendOutcome& f) { f.dsb_miss = true; }, [](FrontendOutcome& f) { f.l1i_miss = true; }},
    {0x11, [](FrontendOutcome& f) { f.dsb_miss = true; }, [](FrontendOutcome& f) { f.l1i_miss = true; }},
    {0x12, [](FrontendOutcome& f) { f.l1i_miss = true; }, [](FrontendOutcome& f) { f.l2_miss = true; }},
    {0x13, [](FrontendOutcome& f) { f.l2_miss = true; }, [](FrontendOutcome& f) { f.itlb_miss = true; }},
    {0x14, [](FrontendOutcome& f) { f.itlb_miss = true; }, [](FrontendOutcome& f) { f.stlb_miss = true; }},
    {0x15, [](FrontendOutcome& f) { f.stlb_miss = true; }, [](FrontendOutcome& f) { f.dsb_miss = true; }},
    // LATENCY_GE_16: all four slots empty for 16 cycles.
    {0x40'1006, [](FrontendOutcome& f) { f = {.bubble_cycles = 16, .bubble_slots = 4}; },
     [](FrontendOutcome& f) { f = {.bubble_cycles = 15, .bubble_slots = 4}; }},
    // LATENCY_GE_2_BUBBLES_GE_3.
    {0x30'0206, [](FrontendOutcome& f) { f = {.bubble_cycles = 3, .bubble_slots = 3}; },
     [](FrontendOutcome& f) { f = {.bubble_cycles = 3, .bubble_slots = 2}; }},
};

// SDM 3B tables 18-58 and 18-59: MSR_PEBS_FRONTEND selects what counts.
TEST(Frontend, CountsWhatTheMsrSelects) {
  for (const FrontendRow& row : frontend_rows) {
    S s;
    s.write(msr::MSR_PEBS_FRONTEND, row.selection);
    s.start(0, frontend_retired, 100);
    Retirement r = s.plain(1);
    row.does_not(r.frontend);
    s.retire(r);
    EXPECT_EQ(s.pmc(0), minus(100)) << std::hex << row.selection;
    row.happens(r.frontend);
    s.retire(r);
    EXPECT_EQ(s.pmc(0), minus(99)) << std::hex << row.selection;
  }
}

TEST(Frontend, UnknownSelectionCountsNothing) {
  for (const std::uint64_t selection : {0x00U, 0x07U, 0x16U, 0x06U}) {
    S s;
    s.write(msr::MSR_PEBS_FRONTEND, selection);
    s.start(0, frontend_retired, 100);
    Retirement r = s.plain(1);
    r.frontend = {true, true, true, true, true, 100, 4};
    s.retire(r);
    EXPECT_EQ(s.pmc(0), minus(100)) << std::hex << selection;
  }
}

// Rule C8, last sentence: AnyThread is ignored; and the event is precise.
TEST(Frontend, IsPreciseAndIgnoresAnyThread) {
  S s;
  s.write(msr::MSR_PEBS_FRONTEND, 0x12);
  Select form = frontend_retired;
  form.any = true;
  s.start_pebs(2, form, 1);
  for (unsigned k = 1; k <= 3; ++k) {
    Retirement r = s.plain(k);
    r.frontend.l1i_miss = k != 2;
    s.retire(r);
  }
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
}

}  // namespace
}  // namespace vpmu::test
