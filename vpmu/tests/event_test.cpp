#include "vpmu/event.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "event_table.hpp"
#include "vpmu/counts.hpp"
#include "vpmu/generation.hpp"

namespace vpmu::test {
namespace {

const GenerationDesc& skylake() { return describe(Generation::skylake); }

/// A row of a made-up table.
constexpr EventDesc plain_row(std::string_view name, std::uint8_t code, std::uint16_t counters) {
  return {name, code, 0, 0, false, false, false, counters, PebsAbility::no, false, false, 0, 0, 1, Counts::unmodelled};
}

EventClass classify_skylake(EventSpec spec) { return classify(skylake(), spec); }

struct Architectural {
  const char* name;
  std::uint8_t code, umask;
  Counts counts;
};

class ArchitecturalEvents : public testing::TestWithParam<Architectural> {};

// SDM 3B table 18-1.
INSTANTIATE_TEST_SUITE_P(Events, ArchitecturalEvents,
                         testing::Values(Architectural{"UnhaltedCoreCycles", 0x3C, 0x00, Counts::cycles},
                                         Architectural{"InstructionsRetired", 0xC0, 0x00, Counts::instructions},
                                         Architectural{"UnhaltedReferenceCycles", 0x3C, 0x01, Counts::bus_cycles},
                                         Architectural{"LlcReferences", 0x2E, 0x4F, Counts::llc_references},
                                         Architectural{"LlcMisses", 0x2E, 0x41, Counts::llc_misses},
                                         Architectural{"BranchInstructionsRetired", 0xC4, 0x00, Counts::branches},
                                         Architectural{"BranchMissesRetired", 0xC5, 0x00, Counts::mispredicts}),
                         [](const auto& param_info) { return std::string{param_info.param.name}; });

TEST_P(ArchitecturalEvents, CountWhatTheManualSaysInEveryGeneration) {
  ASSERT_FALSE(all_generations().empty());
  for (const GenerationDesc* generation : all_generations())
    EXPECT_EQ(classify(*generation, {.code = GetParam().code, .umask = GetParam().umask}).counts, GetParam().counts)
        << generation->name;
}

TEST(Classify, KnowsWhatAPreciseLoadRecordCarries) {
  const EventClass loads = classify_skylake({.code = 0xD0, .umask = 0x81});
  EXPECT_EQ(loads.counts, Counts::loads);
  EXPECT_EQ(loads.pebs, PebsAbility::yes);
  EXPECT_TRUE(loads.data_la);
  EXPECT_FALSE(loads.l1_hit_indication);
}

// Rule S3: only stores say whether they hit the L1D.
TEST(Classify, KnowsThatAStoreRecordSaysWhetherItHitTheL1) {
  const EventClass stores = classify_skylake({.code = 0xD0, .umask = 0x82});
  EXPECT_EQ(stores.counts, Counts::stores);
  EXPECT_TRUE(stores.data_la);
  EXPECT_TRUE(stores.l1_hit_indication);
}

TEST(Classify, TakesTheExtraMsrsEventsAsOne) {
  EXPECT_EQ(classify_skylake({.code = 0xCD, .umask = 0x01}).counts, Counts::load_latency);
  EXPECT_EQ(classify_skylake({.code = 0xCD, .umask = 0x01}).pebs, PebsAbility::only);
  EXPECT_EQ(classify_skylake({.code = 0xC6, .umask = 0x01}).counts, Counts::frontend);
  // One of the front-end rows is for PEBS only, the others are not: the code as a whole is not.
  EXPECT_EQ(classify_skylake({.code = 0xC6, .umask = 0x01}).pebs, PebsAbility::yes);
}

TEST(Classify, KnowsBothOffcoreCodes) {
  EXPECT_EQ(classify_skylake({.code = 0xB7, .umask = 0x01}).counts, Counts::offcore);
  EXPECT_EQ(classify_skylake({.code = 0xBB, .umask = 0x01}).counts, Counts::offcore_1);
}

// Rule P18: Linux's cycles:p and cycles:ppp, and the documented form with CMASK = 10 (SDM 3B table 18-56, note 2).
TEST(Classify, LetsPreciseCyclesBePrecise) {
  const EventSpec forms[] = {{.code = 0xC0, .umask = 0x00, .cmask = 16, .inv = true},
                             {.code = 0xC0, .umask = 0x01, .cmask = 16, .inv = true},
                             {.code = 0xC0, .umask = 0x01, .cmask = 10, .inv = true}};
  for (const EventSpec& form : forms) {
    EXPECT_NE(classify_skylake(form).pebs, PebsAbility::no) << unsigned{form.umask} << ' ' << unsigned{form.cmask};
    EXPECT_EQ(classify_skylake(form).counts, Counts::instructions);
  }
}

TEST(Classify, LooksAtCodeAndUmaskOnly) {
  for (const EventDesc& row : skylake().events) {
    if (row.code == 0) continue;
    const EventClass plain = classify_skylake({.code = row.code, .umask = row.umask});
    const EventClass form = classify_skylake({.code = row.code,
                                              .umask = row.umask,
                                              .cmask = 3,
                                              .usr = true,
                                              .os = true,
                                              .edge = true,
                                              .any = true,
                                              .inv = true});
    EXPECT_EQ(plain.counts, row.counts) << row.name;
    EXPECT_EQ(form.counts, plain.counts) << row.name;
    EXPECT_EQ(form.pebs, plain.pebs) << row.name;
  }
}

// SDM 3B tables 19-5, 19-9, 19-13: umask bits add up and qualify each other. Of the aliases of Linux F1H and F2H of D0H
// are such sums.
TEST(Classify, AnUmaskThatIsMadeOfOthersIsTheirUnion) {
  struct Case {
    std::uint8_t code, umask;
    Counts counts;
  };
  unsigned seen = 0;
  for (const GenerationDesc* g : all_generations()) {
    if (g->generation < Generation::sandy_bridge) continue;
    for (const Case& c :
         {Case{0xD0, 0xF1, Counts::loads}, Case{0xD0, 0xF2, Counts::stores}, Case{0xD0, 0xA1, Counts::loads},
          Case{0xD0, 0x22, Counts::locked_stores}, Case{0xD0, 0x71, Counts::several},
          Case{0x88, 0x81, Counts::branches_conditional_taken}, Case{0x88, 0xBF, Counts::branches_taken},
          Case{0x88, 0x7F, Counts::branches_not_taken}, Case{0x88, 0xB0, Counts::branches_call},
          Case{0x88, 0xF0, Counts::branches_call}, Case{0x88, 0x42, Counts::never}, Case{0x88, 0x83, Counts::several},
          Case{0x88, 0xC7, Counts::branches_not_call}, Case{0x89, 0xE0, Counts::mispredicts_call_indirect},
          Case{0x89, 0xFD, Counts::several}, Case{0x89, 0x7F, Counts::mispredicts_not_taken},
          Case{0xD1, 0x03, Counts::several}, Case{0xC4, 0x30, Counts::branches_near}}) {
      const bool has_88 = g->generation < Generation::skylake;
      const bool only_sum = c.code == 0xD0 || c.code == 0xD1 || c.code == 0xC4;
      if (!has_88 && !only_sum) continue;
      Counts expected = c.counts;
      const bool by_uop = g->generation < Generation::skylake;  // MEM_UOPS_RETIRED
      if (by_uop && expected == Counts::loads) expected = Counts::load_uops;
      if (by_uop && expected == Counts::stores) expected = Counts::store_uops;
      EXPECT_EQ(classify(*g, {.code = c.code, .umask = c.umask}).counts, expected)
          << g->name << std::hex << ' ' << unsigned{c.code} << ' ' << unsigned{c.umask};
      ++seen;
    }
  }
  EXPECT_GT(seen, 150U);
  const auto broadwell = [](std::uint8_t umask) {
    return classify(describe(Generation::broadwell), {.code = 0xC7, .umask = umask}).counts;
  };
  EXPECT_EQ(broadwell(0x3F), Counts::fp_any);
  EXPECT_EQ(broadwell(0x15), Counts::fp_double);
  EXPECT_EQ(broadwell(0x30), Counts::several);
  const auto nehalem = [](std::uint8_t code, std::uint8_t umask) {
    return classify(describe(Generation::nehalem), {.code = code, .umask = umask}).counts;
  };
  EXPECT_EQ(nehalem(0x10, 0x30), Counts::fp_any);
  EXPECT_EQ(nehalem(0xC0, 0x03), Counts::instructions);
  EXPECT_EQ(nehalem(0x88, 0x3F), Counts::branches_near);
}

// Bits that no row has, or whose row does not count, spoil a sum; so does an event that another register selects, or of
// whose cycles it is not known which are the same.
TEST(Classify, AnUmaskWithABitThatDoesNotCountIsNone) {
  using enum Generation;
  struct Case {
    Generation generation;
    std::uint8_t code, umask;
  };
  for (const Case& c :
       {Case{haswell, 0x88, 0x3F}, Case{haswell, 0xD0, 0x85}, Case{haswell, 0xD0, 0x03}, Case{sandy_bridge, 0x85, 0x05},
        Case{skylake, 0xB7, 0x03}, Case{nehalem, 0x0B, 0x11}, Case{skylake, 0x3C, 0x03}, Case{haswell, 0x2E, 0x51},
        Case{skylake, 0xC4, 0x80}, Case{skylake, 0xA1, 0x03}, Case{skylake, 0xA2, 0x09}, Case{skylake, 0xB1, 0x03}})
    EXPECT_EQ(classify(describe(c.generation), {.code = c.code, .umask = c.umask}).counts, Counts::unmodelled)
        << std::hex << unsigned{c.code} << ' ' << unsigned{c.umask};
}

// What two parts of a union have in common counts once; a load and a store of one instruction are two.
TEST(Classify, AUnionCountsNothingTwice) {
  const auto count = [](std::uint8_t code, std::uint8_t umask, const Retirement& r) {
    const EventClass what = classify(describe(Generation::haswell), {.code = code, .umask = umask});
    EXPECT_EQ(what.counts, Counts::several);
    return occurrences(what.kinds.all(), r);
  };
  const Retirement both{.has_load = true, .has_store = true, .load = {.locked = true, .split = true}};
  EXPECT_EQ(count(0xD0, 0x61, both), 1U) << "locked and split";
  EXPECT_EQ(count(0xD0, 0x61, {.has_load = true}), 0U);
  EXPECT_EQ(count(0xD0, 0x83, both), 2U);
  EXPECT_EQ(count(0x88, 0x83, {.branch = {.kind = BranchKind::conditional, .taken = true}}), 1U);
  EXPECT_EQ(count(0x88, 0x83, {.branch = {.kind = BranchKind::conditional, .taken = false}}), 0U);
  EXPECT_EQ(count(0x88, 0x83, {.branch = {.kind = BranchKind::near_rel_jmp, .taken = true}}), 1U);
  EXPECT_EQ(classify(describe(Generation::haswell), {.code = 0xD0, .umask = 0xF2}).pebs, PebsAbility::yes);
}

// Rows of one code and umask can differ; a guest that programs the code gets what any of its names promises.
TEST(Classify, PromisesWhatAnyNamePromises) {
  for (const EventDesc& row : skylake().events) {
    if (row.code == 0) continue;
    const EventClass found = classify_skylake({.code = row.code, .umask = row.umask});
    EXPECT_TRUE(row.pebs == PebsAbility::no || found.pebs != PebsAbility::no) << row.name;
    EXPECT_TRUE(found.data_la || !row.data_la) << row.name;
    EXPECT_TRUE(found.l1_hit_indication || !row.l1_hit_indication) << row.name;
  }
}

TEST(Classify, TakesTheWidestPebsAbilityOfTheRowsInAnyOrder) {
  using enum PebsAbility;
  struct Case {
    PebsAbility first, second, expected;
  };
  for (const Case& c : {Case{no, yes, yes}, Case{yes, no, yes}, Case{no, only, only}, Case{only, no, only},
                        Case{yes, only, yes}, Case{only, yes, yes}, Case{no, no, no}, Case{only, only, only},
                        Case{no, disputed, disputed}, Case{disputed, yes, yes}, Case{only, disputed, only}}) {
    std::array rows{plain_row("A", 1, 0xF), plain_row("B", 1, 0xF)};
    rows[0].pebs = c.first;
    rows[1].pebs = c.second;
    GenerationDesc generation = skylake();
    generation.events = rows;
    EXPECT_EQ(classify(generation, {.code = 1}).pebs, c.expected);
  }
}

// Rule P24: what libpfm4 or Linux take records from, and Intel's list does not; and what it leaves out, as
// UOPS_RETIRED.ALL of Skylake.
TEST(Classify, EventsInDisputeMayBePrecise) {
  for (const GenerationDesc* g : all_generations())
    for (const std::uint8_t code : std::initializer_list<std::uint8_t>{0xC0, 0xC4, 0xC5})
      EXPECT_EQ(classify(*g, {.code = code}).pebs, PebsAbility::disputed) << g->name << ' ' << unsigned{code};
  for (const Generation g : {Generation::skylake, Generation::skylake_sp}) {
    const EventClass all_uops = classify(describe(g), {.code = 0xC2, .umask = 0x01});
    EXPECT_EQ(all_uops.counts, Counts::uops_retired);
    EXPECT_EQ(all_uops.pebs, PebsAbility::disputed);
    EXPECT_TRUE(all_uops.data_la) << "SDM 3B table 18-57";
  }
  struct Row {
    Generation generation;
    std::uint8_t code, umask;
    Counts counts;
  };
  for (const Row& row : {Row{Generation::skylake, 0xC5, 0x08, Counts::mispredicts_return},
                         Row{Generation::skylake, 0xD3, 0x01, Counts::l3_miss},
                         Row{Generation::sandy_bridge_ep, 0xD4, 0x02, Counts::l3_miss}}) {
    const EventClass found = classify(describe(row.generation), {.code = row.code, .umask = row.umask});
    EXPECT_EQ(found.counts, row.counts) << unsigned{row.code};
    EXPECT_EQ(found.pebs, PebsAbility::disputed) << unsigned{row.code};
  }
}

TEST(Classify, KeepsWhatAnEarlierRowPromised) {
  std::array rows{plain_row("A", 1, 0xF), plain_row("B", 1, 0xF)};
  rows[0].data_la = true;
  rows[0].l1_hit_indication = true;
  GenerationDesc generation = skylake();
  generation.events = rows;
  EXPECT_TRUE(classify(generation, {.code = 1}).data_la);
  EXPECT_TRUE(classify(generation, {.code = 1}).l1_hit_indication);
}

// Rule P19: what is not in the table never gives a record.
TEST(Classify, MakesUnknownCodesCountNothing) {
  for (const EventSpec spec : {EventSpec{.code = 0xFF, .umask = 0xFF}, EventSpec{.code = 0xC0, .umask = 0x7F},
                               EventSpec{.code = 0x01, .umask = 0x00}}) {
    EXPECT_EQ(classify_skylake(spec).counts, Counts::unmodelled);
    EXPECT_EQ(classify_skylake(spec).pebs, PebsAbility::no);
  }
}

TEST(Classify, DoesNotSelectFixedCountersByTheirPlaceholderCode) {
  for (unsigned umask = 0; umask < 256; ++umask)
    EXPECT_EQ(classify_skylake({.code = 0x00, .umask = static_cast<std::uint8_t>(umask)}).counts, Counts::unmodelled)
        << umask;
}

TEST(FindEvent, FindsEveryNameOnce) {
  std::set<std::string_view> names;
  for (const EventDesc& row : skylake().events) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is there twice";
    EXPECT_EQ(find_event(skylake(), row.name), &row);
  }
  EXPECT_GT(names.size(), 560U);
}

TEST(FindEvent, IsExact) {
  EXPECT_EQ(find_event(skylake(), ""), nullptr);
  EXPECT_EQ(find_event(skylake(), "INST_RETIRED"), nullptr);
  EXPECT_EQ(find_event(skylake(), "inst_retired.any_p"), nullptr);
}

// Rule D1, SDM 3B table 18-56, note 1.
TEST(SkylakeEvents, RunThePreciselyDistributedEventOnPmc1Only) {
  const EventDesc* row = find_event(skylake(), "INST_RETIRED.PREC_DIST");
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->counters, 1U << 1);
}

TEST(SkylakeEvents, CountTheSameInAllRowsOfACode) {
  const EventDesc* previous = nullptr;
  for (const EventDesc& row : skylake().events) {
    if (previous != nullptr && row.code != 0 && previous->code == row.code && previous->umask == row.umask) {
      EXPECT_EQ(row.counts, previous->counts) << row.name;
    }
    previous = &row;
  }
}

// The checks that each table asserts at compile time, on tables that are wrong.

TEST(EventTableChecks, RefuseDisorderAndRepetition) {
  const EventDesc a = plain_row("A", 1, 0xF);
  const EventDesc b = plain_row("B", 2, 0xF);
  EXPECT_TRUE(events::is_sorted_and_unique(std::array{a, b}));
  EXPECT_FALSE(events::is_sorted_and_unique(std::array{b, a}));
  EXPECT_FALSE(events::is_sorted_and_unique(std::array{a, a}));
}

TEST(EventTableChecks, RefuseImpossibleCounters) {
  EXPECT_TRUE(events::has_possible_counters(std::array{plain_row("A", 1, 0xFF)}));
  EXPECT_TRUE(events::has_possible_counters(std::array{plain_row("F", 0, 0x400)}));
  for (const EventDesc& row :
       {plain_row("None", 1, 0), plain_row("Ninth", 1, 0x800), plain_row("FixedByCode", 1, 0x100),
        plain_row("NoCode", 0, 0xF), plain_row("TwoFixed", 0, 0x300)})
    EXPECT_FALSE(events::has_possible_counters(std::array{row})) << row.name;
}

// Rule O5.
TEST(EventTableChecks, RefusePreciseEventsBeyondPmc3) {
  EventDesc row = plain_row("A", 1, 0xF0);
  EXPECT_TRUE(events::has_pebs_on_pebs_counters(std::array{row}));
  row.pebs = PebsAbility::yes;
  EXPECT_FALSE(events::has_pebs_on_pebs_counters(std::array{row}));
}

TEST(EventTableChecks, RefuseATableWithoutAnArchitecturalEvent) {
  std::vector<EventDesc> rows(skylake().events.begin(), skylake().events.end());
  EXPECT_TRUE(events::has_architectural_events(rows));
  std::erase_if(rows, [](const EventDesc& e) { return e.code == 0x2E && e.umask == 0x41; });
  EXPECT_FALSE(events::has_architectural_events(rows));
}

// Sandy Bridge, Ivy Bridge and Broadwell: "hits in the LLC without snoops required"; SDM 3C tables 19-7 and later. On
// Haswell and Skylake any L3 hit.
TEST(Events, L3HitIsWithoutASnoopWhereTheManualSaysSo) {
  unsigned without = 0;
  for (const GenerationDesc* const g : all_generations()) {
    if (g->generation < Generation::sandy_bridge) continue;
    const bool any = g->generation == Generation::haswell || g->generation == Generation::haswell_ep ||
                     g->generation >= Generation::skylake;
    EXPECT_EQ(classify(*g, {.code = 0xD1, .umask = 0x04}).counts, any ? Counts::l3_hit : Counts::l3_hit_unshared)
        << g->name;
    without += any ? 0 : 1;
  }
  EXPECT_EQ(without, 7U);
}

/// A code and umask, and what they count on some generations.
struct PipelineEvent {
  std::uint8_t code, umask;
  Counts counts;
  Generation first, last;
};

// SDM 3C tables 19-5 to 19-17, by code and umask: what the same umask counts changes between generations.
TEST(Events, ThoseOfThePipelineCountWhatTheManualSays) {
  using enum Counts;
  using enum Generation;
  constexpr Generation snb = sandy_bridge, ivb = ivy_bridge, ivb_ep = ivy_bridge_ep, hsw = haswell, hsw_ep = haswell_ep,
                       bdw = broadwell, bdw_ep = broadwell_ep, skl = skylake, last = skylake_sp, wsm_ex = westmere_ex;
  unsigned seen = 0;
  for (const PipelineEvent& e : {
           PipelineEvent{0x03, 0x02, blocked_forwards, snb, last},
           {0x07, 0x01, aliased_loads, nehalem, last},
           {0x0D, 0x03, recovery_cycles, snb, bdw_ep},
           {0x0D, 0x01, recovery_cycles, skl, last},
           {0x0D, 0x80, resteer_cycles, skl, last},
           {0x0E, 0x01, uops_issued, nehalem, last},
           {0x14, 0x01, dividing_cycles, nehalem, ivb_ep},
           {0x14, 0x04, dividing_cycles, ivb, ivb_ep},
           {0x14, 0x02, divider_uops, hsw, hsw_ep},
           {0x14, 0x01, dividing_cycles, bdw, last},
           {0x48, 0x01, l1d_lines_pending, snb, last},
           {0x5E, 0x01, scheduler_empty_cycles, snb, last},
           {0x60, 0x01, demand_reads_outstanding, snb, last},
           {0x60, 0x10, memory_reads_outstanding, skl, last},
           {0x79, 0x04, uops_from_mite, snb, last},
           {0x79, 0x08, uops_from_dsb, snb, last},
           {0x79, 0x10, microcode_from_dsb, snb, last},
           {0x79, 0x18, all_uops_from_dsb, snb, last},
           {0x79, 0x20, microcode_from_mite, snb, last},
           {0x79, 0x24, all_uops_from_mite, snb, last},
           {0x79, 0x30, microcode, snb, last},
           {0x79, 0x3C, uops_delivered, snb, bdw_ep},
           {0x87, 0x01, prefix_stall_cycles, nehalem, last},
           {0x9C, 0x01, slots_not_delivered, snb, last},
           {0xA1, 0x01, uops_on_port_0, snb, last},
           {0xA1, 0x02, uops_on_port_1, snb, last},
           {0xA1, 0x0C, uops_on_port_2, snb, ivb_ep},
           {0xA1, 0x30, uops_on_port_3, snb, ivb_ep},
           {0xA1, 0x40, uops_on_port_4, snb, ivb_ep},
           {0xA1, 0x80, uops_on_port_5, snb, ivb_ep},
           {0xA1, 0x04, uops_on_port_2, hsw, last},
           {0xA1, 0x08, uops_on_port_3, hsw, last},
           {0xA1, 0x10, uops_on_port_4, hsw, last},
           {0xA1, 0x20, uops_on_port_5, hsw, last},
           {0xA1, 0x40, uops_on_port_6, hsw, last},
           {0xA1, 0x80, uops_on_port_7, hsw, last},
           {0xA2, 0x01, resource_stall_cycles, nehalem, last},
           {0xA2, 0x04, scheduler_full_cycles, nehalem, bdw_ep},
           {0xA2, 0x08, store_queue_full_cycles, nehalem, last},
           {0xA2, 0x10, reorder_full_cycles, nehalem, bdw_ep},
           {0xA3, 0x01, l2_miss_cycles, snb, last},
           {0xA3, 0x02, l1d_miss_cycles, snb, sandy_bridge_ep},
           {0xA3, 0x02, load_cycles, ivb, bdw_ep},
           {0xA3, 0x02, l3_miss_cycles, skl, last},
           {0xA3, 0x04, stall_cycles, snb, last},
           {0xA3, 0x05, l2_miss_stall_cycles, snb, last},
           {0xA3, 0x06, l1d_miss_stall_cycles, snb, sandy_bridge_ep},
           {0xA3, 0x06, load_stall_cycles, ivb, bdw_ep},
           {0xA3, 0x06, l3_miss_stall_cycles, skl, last},
           {0xA3, 0x08, l1d_miss_cycles, ivb, last},
           {0xA3, 0x0C, l1d_miss_stall_cycles, ivb, last},
           {0xA3, 0x10, load_cycles, skl, last},
           {0xA3, 0x14, load_stall_cycles, skl, last},
           {0xA6, 0x01, scheduler_waits_cycles, skl, last},
           {0xA6, 0x02, one_uop_cycles, skl, last},
           {0xA6, 0x04, two_uop_cycles, skl, last},
           {0xA6, 0x08, three_uop_cycles, skl, last},
           {0xA6, 0x10, four_uop_cycles, skl, last},
           {0xA6, 0x40, stores_hold_up_cycles, skl, last},
           {0xA8, 0x01, uops_from_lsd, nehalem, last},
           {0xAB, 0x02, dsb_to_mite_cycles, snb, last},
           {0xB1, 0x01, uops_on_port_0, nehalem, wsm_ex},
           {0xB1, 0x02, uops_on_port_1, nehalem, wsm_ex},
           {0xB1, 0x04, uops_on_port_2, nehalem, wsm_ex},
           {0xB1, 0x08, uops_on_port_3, nehalem, wsm_ex},
           {0xB1, 0x10, uops_on_port_4, nehalem, wsm_ex},
           {0xB1, 0x20, uops_on_port_5, nehalem, wsm_ex},
           {0xB1, 0x3F, uops_executed, nehalem, wsm_ex},
           {0xB1, 0x01, uops_executed, snb, last},
           {0xB1, 0x02, uops_executed, snb, last},
           {0xC2, 0x01, uops_retired, nehalem, last},
           {0xC2, 0x02, slots_retired, nehalem, last},
           {0xC3, 0x01, machine_clear_cycles, nehalem, last},
           {0xC3, 0x04, self_modifying_code, nehalem, last},
       }) {
    for (const GenerationDesc* const g : all_generations()) {
      if (g->generation < e.first || g->generation > e.last) continue;
      EXPECT_EQ(classify(*g, {.code = e.code, .umask = e.umask}).counts, e.counts)
          << g->name << std::hex << ' ' << unsigned{e.code} << ' ' << unsigned{e.umask};
      ++seen;
    }
  }
  EXPECT_GT(seen, 550U);
}

// SDM 3C tables 19-5 to 19-17: of the caches, page walks, and lines under way.
TEST(Events, ThoseOfTheCachesCountWhatTheManualSays) {
  using enum Counts;
  using enum Generation;
  constexpr Generation nhm = nehalem, nhm_ex = nehalem_ex, wsm = westmere, wsm_ex = westmere_ex, snb = sandy_bridge,
                       ivb = ivy_bridge, ivb_ep = ivy_bridge_ep, hsw = haswell, bdw_ep = broadwell_ep, skl = skylake,
                       last = skylake_sp;
  unsigned seen = 0;
  for (const PipelineEvent& e : {
           PipelineEvent{0x08, 0x04, load_walk_cycles, wsm, wsm_ex},
           {0x08, 0x04, load_walk_cycles, snb, sandy_bridge_ep},
           {0x08, 0x84, load_walk_cycles, ivb, ivb_ep},
           {0x08, 0x10, load_walk_cycles, hsw, last},
           {0x24, 0x01, l2_data_read_hits, nhm, ivb_ep},
           {0x24, 0x02, l2_data_read_misses, nhm, wsm_ex},
           {0x24, 0x03, l2_data_reads, nhm, ivb_ep},
           {0x24, 0x04, l2_rfo_hits, nhm, ivb_ep},
           {0x24, 0x08, l2_rfo_misses, nhm, ivb_ep},
           {0x24, 0x0C, l2_rfos, nhm, ivb_ep},
           {0x24, 0x10, l2_code_read_hits, nhm, ivb_ep},
           {0x24, 0x20, l2_code_read_misses, nhm, ivb_ep},
           {0x24, 0x30, l2_code_reads, nhm, ivb_ep},
           {0x24, 0x40, l2_prefetch_hits, nhm, ivb_ep},
           {0x24, 0x80, l2_prefetch_misses, nhm, ivb_ep},
           {0x24, 0xC0, l2_prefetches, nhm, ivb_ep},
           {0x24, 0xAA, l2_misses, nhm, wsm_ex},
           {0x24, 0xFF, l2_references, nhm, wsm_ex},
           {0x24, 0x21, l2_data_read_misses, hsw, last},
           {0x24, 0x22, l2_rfo_misses, hsw, last},
           {0x24, 0x24, l2_code_read_misses, hsw, last},
           {0x24, 0x27, l2_demand_misses, hsw, last},
           {0x24, 0x3F, l2_misses, hsw, last},
           {0x24, 0xC1, l2_data_read_hits, hsw, last},
           {0x24, 0xC2, l2_rfo_hits, hsw, last},
           {0x24, 0xC4, l2_code_read_hits, hsw, last},
           {0x24, 0xE1, l2_data_reads, hsw, last},
           {0x24, 0xE2, l2_rfos, hsw, last},
           {0x24, 0xE4, l2_code_reads, hsw, last},
           {0x24, 0xE7, l2_demands, hsw, last},
           {0x24, 0xF8, l2_prefetches, hsw, last},
           {0x24, 0xFF, l2_references, hsw, last},
           {0x26, 0x01, l2_data_read_misses, nhm, wsm_ex},
           {0x26, 0xFF, l2_data_requests, nhm, wsm_ex},
           {0x48, 0x02, fill_buffers_full_cycles, snb, last},
           {0x49, 0x04, data_walk_cycles, wsm, wsm_ex},
           {0x49, 0x04, store_walk_cycles, snb, ivb_ep},
           {0x49, 0x10, store_walk_cycles, hsw, last},
           {0x4C, 0x02, loads_met_hardware_prefetch, snb, bdw_ep},
           {0x4E, 0x02, l1d_prefetch_misses, nhm, sandy_bridge_ep},
           {0x60, 0x01, demand_reads_outstanding, wsm, last},
           {0x60, 0x04, rfos_outstanding, wsm, wsm_ex},
           {0x60, 0x04, rfos_outstanding, snb, last},
           {0x60, 0x02, code_reads_outstanding, ivb, last},
           {0x60, 0x08, reads_outstanding, snb, last},
           {0x85, 0x04, code_walk_cycles, wsm, ivb_ep},
           {0x85, 0x10, code_walk_cycles, hsw, last},
           {0xB0, 0x01, l2_data_read_misses, wsm, last},
           {0xB0, 0x02, l2_code_read_misses, wsm, last},
           {0xB0, 0x04, l2_rfo_misses, wsm, last},
           {0xB0, 0x08, any_reads_off_core, wsm, wsm_ex},
           {0xB0, 0x08, reads_off_core, snb, last},
           {0xBC, 0x11, data_walk_l1d, hsw, bdw_ep},
           {0xBC, 0x18, data_walk_memory, hsw, bdw_ep},
           {0xBC, 0x21, code_walk_l1d, hsw, bdw_ep},
           {0xF0, 0x01, l2_data_reads, nhm, bdw_ep},
           {0xF0, 0x20, l2_fills, nhm, bdw_ep},
           {0xF1, 0x07, l2_fills, nhm, bdw_ep},
           {0xF1, 0x1F, l2_fills, skl, last},
           // What is not modelled: write-backs, and the states of lines.
           {0x28, 0x0F, unmodelled, nhm, ivb_ep},
           {0xF0, 0x40, unmodelled, nhm, last},
           {0xF1, 0x04, unmodelled, nhm, bdw_ep},
           {0xF2, 0x02, unmodelled, nhm, last},
           {0x60, 0x01, unmodelled, nhm, nhm_ex},
       }) {
    for (const GenerationDesc* const g : all_generations()) {
      if (g->generation < e.first || g->generation > e.last) continue;
      EXPECT_EQ(classify(*g, {.code = e.code, .umask = e.umask}).counts, e.counts)
          << g->name << std::hex << ' ' << unsigned{e.code} << ' ' << unsigned{e.umask};
      ++seen;
    }
  }
  EXPECT_GT(seen, 500U);
}

// What the same umask bits stand for counts once, though several rows have them.
TEST(Events, AUnionOfRequestsToTheL2HasEachOnce) {
  const EventClass data_and_rfo = classify(describe(Generation::haswell), {.code = 0x24, .umask = 0xE3});
  ASSERT_EQ(data_and_rfo.counts, Counts::several);
  Retirement r;
  for (std::uint16_t event = 0; event < cache_event_count; ++event)
    r.caches.at(event) = static_cast<std::uint16_t>(1U << event % 16);
  EXPECT_EQ(occurrences(data_and_rfo.kinds.all(), r), 0b1111U) << "reads of data, and for ownership: hits and misses";
  EXPECT_EQ(classify(describe(Generation::sandy_bridge), {.code = 0x24, .umask = 0xC3}).counts, Counts::unmodelled)
      << "prefetches, which not every source has";
}

// Levels 1 and 2 of top-down analysis, by the metrics of Linux's perf and of pmu-tools: all that they read counts.
TEST(Events, TopDownAnalysisReadsNothingThatNobodyTells) {
  using enum Generation;
  struct Name {
    std::string_view name;
    Generation first, last;
  };
  constexpr Generation snb = sandy_bridge, ivb = ivy_bridge, bdw_ep = broadwell_ep, skl = skylake, all = skylake_sp;
  unsigned seen = 0;
  for (const Name& n : {Name{"BR_MISP_RETIRED.ALL_BRANCHES", snb, all},
                        {"CPU_CLK_UNHALTED.ONE_THREAD_ACTIVE", snb, all},
                        {"CPU_CLK_UNHALTED.REF_XCLK", snb, all},
                        {"CPU_CLK_UNHALTED.THREAD", snb, all},
                        {"CPU_CLK_UNHALTED.THREAD_ANY", snb, all},
                        {"CYCLE_ACTIVITY.CYCLES_NO_DISPATCH", snb, sandy_bridge_ep},
                        {"CYCLE_ACTIVITY.STALLS_L1D_PENDING", snb, sandy_bridge_ep},
                        {"CYCLE_ACTIVITY.CYCLES_NO_EXECUTE", ivb, haswell_ep},
                        {"CYCLE_ACTIVITY.STALLS_LDM_PENDING", ivb, haswell_ep},
                        {"CYCLE_ACTIVITY.STALLS_MEM_ANY", broadwell, all},
                        {"CYCLE_ACTIVITY.STALLS_TOTAL", broadwell, all},
                        {"EXE_ACTIVITY.1_PORTS_UTIL", skl, all},
                        {"EXE_ACTIVITY.2_PORTS_UTIL", skl, all},
                        {"EXE_ACTIVITY.BOUND_ON_STORES", skl, all},
                        {"IDQ.MS_UOPS", snb, all},
                        {"IDQ_UOPS_NOT_DELIVERED.CORE", snb, all},
                        {"IDQ_UOPS_NOT_DELIVERED.CYCLES_0_UOPS_DELIV.CORE", snb, all},
                        {"INST_RETIRED.ANY", snb, all},
                        {"INT_MISC.RECOVERY_CYCLES", snb, all},
                        {"INT_MISC.RECOVERY_CYCLES_ANY", snb, all},
                        {"MACHINE_CLEARS.COUNT", snb, all},
                        {"RESOURCE_STALLS.SB", snb, all},
                        {"RS_EVENTS.EMPTY_CYCLES", snb, all},
                        {"UOPS_DISPATCHED.THREAD", snb, sandy_bridge_ep},
                        {"UOPS_EXECUTED.CORE", ivb, all},
                        {"UOPS_EXECUTED.CYCLES_GE_1_UOP_EXEC", ivb, all},
                        {"UOPS_EXECUTED.CYCLES_GE_2_UOPS_EXEC", ivb, all},
                        {"UOPS_EXECUTED.CYCLES_GE_3_UOPS_EXEC", ivb, all},
                        {"UOPS_ISSUED.ANY", snb, all},
                        {"UOPS_RETIRED.MACRO_FUSED", skl, all},
                        {"UOPS_RETIRED.RETIRE_SLOTS", snb, all},
                        {"DSB2MITE_SWITCHES.PENALTY_CYCLES", snb, all},
                        {"ILD_STALL.LCP", snb, all},
                        {"LD_BLOCKS.STORE_FORWARD", snb, all},
                        {"LD_BLOCKS_PARTIAL.ADDRESS_ALIAS", snb, all},
                        {"MACHINE_CLEARS.SMC", snb, all},
                        {"IDQ.MS_SWITCHES", snb, all},
                        {"IDQ.ALL_DSB_CYCLES_4_UOPS", snb, all},
                        {"IDQ.ALL_MITE_CYCLES_ANY_UOPS", snb, all},
                        {"RESOURCE_STALLS.ROB", snb, bdw_ep},
                        {"RESOURCE_STALLS.RS", snb, bdw_ep}})
    for (const GenerationDesc* const g : all_generations()) {
      if (g->generation < n.first || g->generation > n.last) continue;
      const EventDesc* const e = find_event(*g, n.name);
      ASSERT_NE(e, nullptr) << g->name << ' ' << n.name;
      EXPECT_NE(e->counts, Counts::unmodelled) << g->name << ' ' << n.name;
      ++seen;
    }
  EXPECT_GT(seen, 300U);
}

// SDM 3C table 19-9: the CMASK of CYCLE_ACTIVITY asks for all the bits of its umask, and so for the whole event.
TEST(Events, CycleActivityAsksForItsWholeUmask) {
  unsigned seen = 0;
  for (const GenerationDesc* const g : all_generations())
    for (const EventDesc& e : g->events) {
      const bool is_activity = e.code == 0xA3 && e.name.starts_with("CYCLE_ACTIVITY.");
      EXPECT_EQ(describe(e.counts).pipeline.by_umask, is_activity) << g->name << ' ' << e.name;
      if (!is_activity) continue;
      EXPECT_EQ(e.cmask, e.umask) << g->name << ' ' << e.name;
      ++seen;
    }
  EXPECT_GT(seen, 80U);
}

// SDM 3B 18.17.4: the bus clock, or the core crystal clock.
TEST(Events, UnhaltedReferenceClocksAreTheBusClockOfTheGeneration) {
  using enum Generation;
  unsigned alone = 0, names = 0;
  for (const GenerationDesc* const g : all_generations()) {
    const Frequency expected = g->generation < sandy_bridge ? Frequency{.khz = 400'000, .of = 3}
                               : g->generation < skylake    ? Frequency{.khz = 100'000}
                               : g->generation == skylake   ? Frequency{.khz = 24'000}
                                                            : Frequency{.khz = 25'000};
    EXPECT_EQ(g->bus_clock, expected) << g->name;
    for (const EventDesc& e : g->events) {
      if (e.code != 0x3C || e.umask == 0) continue;
      EXPECT_EQ(e.counts, e.umask == 1 ? Counts::bus_cycles : Counts::bus_cycles_alone) << g->name << ' ' << e.name;
      alone += e.umask == 2 ? 1 : 0;
      ++names;
    }
  }
  EXPECT_EQ(alone, 2 * 11U) << "two names from Sandy Bridge on";
  EXPECT_EQ(names, 5U + 6 * 11U);
}

}  // namespace
}  // namespace vpmu::test
