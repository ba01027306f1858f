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

}  // namespace
}  // namespace vpmu::test
