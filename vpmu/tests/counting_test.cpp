#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "pebs_session.hpp"

namespace vpmu::test {
namespace {

using S = PebsSession;

Retirement at_cpl(Retirement r, std::uint8_t cpl) {
  r.cpl = cpl;
  return r;
}

// Rule C1: every enable has to be there.
TEST(Counting, GeneralPurposeCounterNeedsItsEnableTheGlobalEnableAndTheLevel) {
  struct Row {
    bool enabled, global, os, usr;
    std::uint8_t cpl;
    bool counts;
  };
  for (const Row& row : {Row{true, true, true, false, 0, true}, Row{true, true, false, true, 0, false},
                         Row{true, true, false, true, 1, true}, Row{true, true, false, true, 2, true},
                         Row{true, true, false, true, 3, true}, Row{true, true, true, false, 3, false},
                         Row{true, true, false, false, 3, false}, Row{false, true, true, true, 0, false},
                         Row{true, false, true, true, 0, false}}) {
    S s;
    s.write(msr::IA32_PERFEVTSEL0 + 1,
            Select{.event = 0xC0, .usr = row.usr, .os = row.os, .enabled = row.enabled}.raw());
    s.write(msr::IA32_PERF_GLOBAL_CTRL, row.global ? bit(1) : ~bit(1) & S::all_counters);
    s.retire(at_cpl(s.plain(1), row.cpl));
    EXPECT_EQ(s.pmc(1), row.counts ? 1U : 0U) << "enabled " << row.enabled << " global " << row.global << " os "
                                              << row.os << " usr " << row.usr << " cpl " << unsigned{row.cpl};
  }
}

// Rule C2.
TEST(Counting, FixedCountersFollowTheirNibbleAndTheGlobalEnable) {
  for (unsigned n = 0; n < 3; ++n)
    for (const std::uint64_t nibble : {0x0U, 0x1U, 0x2U, 0x3U, 0x8U})
      for (const std::uint8_t cpl : std::initializer_list<std::uint8_t>{0, 3}) {
        S s;
        s.write(msr::IA32_FIXED_CTR_CTRL, nibble << (4 * n));
        s.retire(at_cpl(s.plain(1), cpl));
        const bool counts = (nibble & (cpl == 0 ? 1U : 2U)) != 0;
        EXPECT_EQ(s.fixed(n), counts ? 1U : 0U) << n << " nibble " << nibble << " cpl " << unsigned{cpl};
        s.write(msr::IA32_PERF_GLOBAL_CTRL, S::all_counters & ~bit(32 + n));
        s.retire(at_cpl(s.plain(2), cpl));
        EXPECT_EQ(s.fixed(n), counts ? 1U : 0U) << "GLOBAL_CTRL is off";
      }
}

// SDM 3B table 18-2.
TEST(Counting, FixedCountersCountInstructionsCyclesAndReferenceCycles) {
  S s;
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x333);
  Retirement r = s.plain(1);
  r.cycles = 7;
  r.ref_cycles = 5;
  s.retire(r);
  s.retire(r);
  EXPECT_EQ(s.fixed(0), 2U);
  EXPECT_EQ(s.fixed(1), 14U);
  EXPECT_EQ(s.fixed(2), 10U);
}

// Rule C3: CTR_FRZ stops both kinds.
TEST(Counting, CounterFreezeHoldsBothKinds) {
  S s;
  s.start(0, instructions, 1000);
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x3);
  s.write(msr::IA32_PERF_GLOBAL_STATUS_SET, ctr_frz);
  s.run(1, 5);
  EXPECT_EQ(s.pmc(0), minus(1000));
  EXPECT_EQ(s.fixed(0), 0U);
  EXPECT_TRUE(s.pmu.enabled().empty());
  s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ctr_frz);
  s.run(6, 6);
  EXPECT_EQ(s.pmc(0), minus(999));
  EXPECT_EQ(s.fixed(0), 1U);
}

// Rule C8: without a sibling AnyThread changes nothing.
TEST(Counting, AnyThreadIsAcceptedWithoutEffect) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = 0x3C, .any = true}.raw());
  s.write(msr::IA32_FIXED_CTR_CTRL, 0x70);
  s.run(1, 4);
  EXPECT_EQ(s.pmc(0), 4U);
  EXPECT_EQ(s.fixed(1), 4U);
}

/// Retires instructions of the given numbers of uops, one per pair {cycles before it, uops}.
std::uint64_t count_uops(Select form, std::initializer_list<std::pair<std::uint64_t, std::uint16_t>> stream) {
  S s;
  form.event = 0xC2;
  form.umask = 0x02;
  s.write(msr::IA32_PERFEVTSEL0, form.raw());
  for (const auto& [cycles, uops] : stream) {
    Retirement r = s.plain(1);
    r.cycles = cycles;
    r.uops = uops;
    s.retire(r);
  }
  return s.pmc(0);
}

// SDM 3B 18.2.1.2: references to the last level are by data and by code.
TEST(Counting, TheLastLevelIsThatOfLoadsStoresAndCode) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = 0x2E, .umask = 0x4F}.raw());
  s.write(msr::IA32_PERFEVTSEL0 + 1, Select{.event = 0x2E, .umask = 0x41}.raw());
  Retirement r = s.plain(1);
  r.has_load = r.has_store = true;
  r.load.level = HitLevel::dram;
  r.store.level = HitLevel::l3;
  r.frontend = {.llc_references = 2, .llc_misses = 1};
  s.retire(r);
  EXPECT_EQ(s.pmc(0), 4U);
  EXPECT_EQ(s.pmc(1), 2U);
}

// Events of lines that are filled into caches, and of TLB misses, for data and code.
TEST(Counting, LinesAndPagesAreThoseOfTheInstruction) {
  const std::array rows{std::pair{Select{.event = 0x51, .umask = 0x01}, 3U},   // L1D.REPLACEMENT
                        std::pair{Select{.event = 0x83, .umask = 0x02}, 4U},   // ICACHE_64B.IFTAG_MISS
                        std::pair{Select{.event = 0x85, .umask = 0x20}, 5U},   // ITLB_MISSES.STLB_HIT
                        std::pair{Select{.event = 0x85, .umask = 0x01}, 6U},   // ITLB_MISSES.MISS_CAUSES_A_WALK
                        std::pair{Select{.event = 0x08, .umask = 0x0E}, 1U},   // DTLB_LOAD_MISSES.WALK_COMPLETED
                        std::pair{Select{.event = 0x49, .umask = 0x0E}, 0U}};  // DTLB_STORE_MISSES.WALK_COMPLETED
  for (const auto& [select, expected] : rows) {
    S s;
    s.write(msr::IA32_PERFEVTSEL0, select.raw());
    Retirement r = s.plain(1);
    r.has_load = r.has_store = true;
    r.load.stlb_miss = true;
    r.l1d_fills = 3;
    r.frontend = {.l1i_misses = 4, .itlb_stlb_hits = 5, .itlb_walks = 6};
    s.retire(r);
    EXPECT_EQ(s.pmc(0), expected) << select.event;
  }
}

// Rule C4.
TEST(CounterMask, ZeroAddsAllEventsOfACycle) { EXPECT_EQ(count_uops({}, {{1, 3}, {0, 1}, {5, 2}}), 6U); }

TEST(CounterMask, CountsCyclesThatReachTheMask) {
  // Cycles: 4 uops (3 + 1), three empty, 2, then 4.
  EXPECT_EQ(count_uops({.cmask = 4}, {{1, 3}, {0, 1}, {4, 2}, {1, 4}}), 2U);
  EXPECT_EQ(count_uops({.cmask = 2}, {{1, 3}, {0, 1}, {4, 2}, {1, 4}}), 3U);
  EXPECT_EQ(count_uops({.cmask = 5}, {{1, 3}, {0, 1}, {4, 2}, {1, 4}}), 0U);
}

TEST(CounterMask, InvertedCountsCyclesBelowTheMask) {
  // The cycle before the first instruction is empty; the cycle still open at the end is not over.
  EXPECT_EQ(count_uops({.cmask = 4, .inv = true}, {{1, 3}, {0, 1}, {4, 2}, {1, 4}}), 5U);
  EXPECT_EQ(count_uops({.cmask = 16, .inv = true}, {{1, 3}, {0, 1}, {4, 2}, {1, 4}}), 6U);
}

TEST(CounterMask, InvertDoesNothingWithoutAMask) { EXPECT_EQ(count_uops({.inv = true}, {{1, 3}, {0, 1}, {5, 2}}), 6U); }

TEST(CounterMask, EdgeCountsRisesOfTheCondition) {
  // Cycles: busy, busy, idle, busy.
  EXPECT_EQ(count_uops({.cmask = 1, .edge = true}, {{1, 1}, {1, 2}, {2, 1}}), 2U);
  EXPECT_EQ(count_uops({.cmask = 1, .inv = true, .edge = true}, {{1, 1}, {1, 2}, {2, 1}}), 2U);
}

TEST(CounterMask, CyclesReachAMaskOfOneInEveryCycle) {
  for (const auto& [form, counted] :
       {std::pair{Select{.event = 0x3C, .cmask = 1}, 9U}, std::pair{Select{.event = 0x3C, .cmask = 2}, 0U},
        std::pair{Select{.event = 0x3C, .cmask = 2, .inv = true}, 9U},
        std::pair{Select{.event = 0x3C, .cmask = 1, .inv = true}, 0U}}) {
    S s;
    s.write(msr::IA32_PERFEVTSEL0, form.raw());
    for (unsigned k = 1; k <= 3; ++k) {
      Retirement r = s.plain(k);
      r.cycles = 3;
      s.retire(r);
    }
    EXPECT_EQ(s.pmc(0), counted) << "cmask " << unsigned{form.cmask} << " inv " << form.inv;
  }
}

// Rules C1 and C4: a cycle is over when the guest has spent cycles at another level, counted or not.
TEST(CounterMask, CyclesAtAFilteredLevelEndTheOpenCycle) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = 0xC2, .umask = 0x02, .cmask = 1, .os = false}.raw());
  const auto retire = [&](std::uint8_t cpl, std::uint64_t cycles) {
    Retirement r = at_cpl(s.plain(1), cpl);
    r.cycles = cycles;
    s.retire(r);
  };
  retire(3, 1);  // a user cycle
  retire(0, 5);  // the kernel
  retire(3, 0);  // retires in the kernel's last cycle, which is a new one for this counter
  EXPECT_EQ(s.pmc(0), 2U);
}

// CPU_CLK_UNHALTED.RING0_TRANS: the edge of "a cycle at ring 0".
TEST(CounterMask, EdgeOfCyclesAtOneLevelCountsTransitionsToIt) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = 0x3C, .cmask = 1, .edge = true, .usr = false}.raw());
  for (const std::uint8_t cpl : std::initializer_list<std::uint8_t>{3, 0, 0, 3, 3, 0, 3})
    s.retire(at_cpl(s.plain(1), cpl));
  EXPECT_EQ(s.pmc(0), 2U);
}

// Events that no source delivers read 0 in every form.
TEST(Counting, UnmodelledEventsStayAtZero) {
  for (const Select& event : {Select{.event = 0xFE, .umask = 0xFE}, Select{.event = 0}}) {
    for (const bool inverted : {false, true}) {
      S s;
      Select form = event;
      form.cmask = inverted ? 16 : 0;
      form.inv = inverted;
      s.write(msr::IA32_PERFEVTSEL0, form.raw());
      s.run(1, 5);
      EXPECT_EQ(s.pmc(0), 0U) << unsigned{event.event} << " inverted " << inverted;
    }
  }
}

// Each kind of event that an instruction stream can deliver, with a retirement that causes it; a plain one must not.
struct EventRow {
  const char* name;
  std::uint8_t event, umask;
  void (*happens)(Retirement&);
  std::uint64_t counted{1};
};
void take_branch(Retirement& r, BranchKind kind, bool taken, bool mispredicted) {
  r.branch = {.kind = kind, .taken = taken, .mispredicted = mispredicted};
}
void load_from(Retirement& r, HitLevel level) {
  r.has_load = true;
  r.load.level = level;
}
constexpr EventRow event_rows[] = {
    {"branches", 0xC4, 0x00, [](Retirement& r) { take_branch(r, BranchKind::far, true, false); }},
    {"conditional", 0xC4, 0x01, [](Retirement& r) { take_branch(r, BranchKind::conditional, false, false); }},
    {"call", 0xC4, 0x02, [](Retirement& r) { take_branch(r, BranchKind::near_ind_call, true, false); }},
    {"return", 0xC4, 0x08, [](Retirement& r) { take_branch(r, BranchKind::near_ret, true, false); }},
    {"not taken", 0xC4, 0x10, [](Retirement& r) { take_branch(r, BranchKind::conditional, false, false); }},
    {"near taken", 0xC4, 0x20, [](Retirement& r) { take_branch(r, BranchKind::near_rel_jmp, true, false); }},
    {"far", 0xC4, 0x40, [](Retirement& r) { take_branch(r, BranchKind::far, true, false); }},
    {"mispredicted", 0xC5, 0x00, [](Retirement& r) { take_branch(r, BranchKind::near_ret, true, true); }},
    {"mispredicted conditional", 0xC5, 0x01,
     [](Retirement& r) { take_branch(r, BranchKind::conditional, false, true); }},
    {"mispredicted call", 0xC5, 0x02, [](Retirement& r) { take_branch(r, BranchKind::near_rel_call, true, true); }},
    {"mispredicted taken", 0xC5, 0x20, [](Retirement& r) { take_branch(r, BranchKind::near_ind_jmp, true, true); }},
    {"uops", 0xC2, 0x02, [](Retirement& r) { r.uops = 3; }, 3},
    {"loads", 0xD0, 0x81, [](Retirement& r) { r.has_load = true; }},
    {"stores", 0xD0, 0x82, [](Retirement& r) { r.has_store = true; }},
    {"locked loads", 0xD0, 0x21, [](Retirement& r) { r.has_load = r.load.locked = true; }},
    {"split loads", 0xD0, 0x41, [](Retirement& r) { r.has_load = r.load.split = true; }},
    {"split stores", 0xD0, 0x42, [](Retirement& r) { r.has_store = r.store.split = true; }},
    {"STLB miss loads", 0xD0, 0x11, [](Retirement& r) { r.has_load = r.load.stlb_miss = true; }},
    {"STLB miss stores", 0xD0, 0x12, [](Retirement& r) { r.has_store = r.store.stlb_miss = true; }},
    {"L1 hit", 0xD1, 0x01, [](Retirement& r) { load_from(r, HitLevel::l1); }},
    {"L2 hit", 0xD1, 0x02, [](Retirement& r) { load_from(r, HitLevel::l2); }},
    {"L3 hit", 0xD1, 0x04, [](Retirement& r) { load_from(r, HitLevel::l3); }},
    {"L1 miss", 0xD1, 0x08, [](Retirement& r) { load_from(r, HitLevel::l2); }},
    {"L2 miss", 0xD1, 0x10, [](Retirement& r) { load_from(r, HitLevel::l3); }},
    {"L3 miss", 0xD1, 0x20, [](Retirement& r) { load_from(r, HitLevel::dram); }},
    {"fill buffer hit", 0xD1, 0x40, [](Retirement& r) { load_from(r, HitLevel::lfb); }},
    {"cache references", 0x2E, 0x4F, [](Retirement& r) { load_from(r, HitLevel::l3); }},
    {"cache misses", 0x2E, 0x41, [](Retirement& r) { load_from(r, HitLevel::dram); }},
};

TEST(Counting, EachEventCountsWhatItsNameSaysAndNothingElse) {
  for (const EventRow& row : event_rows) {
    S s;
    s.write(msr::IA32_PERFEVTSEL0, Select{.event = row.event, .umask = row.umask}.raw());
    Retirement other{.ip = S::a(1), .next_ip = S::a(2), .uops = 0, .cycles = 1};
    s.retire(other);
    EXPECT_EQ(s.pmc(0), 0U) << row.name << " counted a plain instruction";
    row.happens(other);
    s.retire(other);
    EXPECT_EQ(s.pmc(0), row.counted) << row.name;
  }
}

// Rule C7: ticks of the crystal clock come with the retirement like cycles do.
TEST(Counting, BusCyclesAreTheCrystalClock) {
  S s;
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = 0x3C, .umask = 0x01}.raw());
  Retirement r = s.plain(1);
  r.bus_cycles = 11;
  s.retire(r);
  EXPECT_EQ(s.pmc(0), 11U);
}

/// How often the event of that name counts a retirement, on that generation.
std::uint64_t counted(Generation generation, std::string_view event, const Retirement& r) {
  const EventDesc* const row = find_event(describe(generation), event);
  EXPECT_NE(row, nullptr) << event;
  if (row == nullptr) return ~0ULL;
  S s{PmuConfig{.generation = generation}};
  s.write(msr::IA32_PERFEVTSEL0, Select{.event = row->code, .umask = row->umask}.raw());
  s.retire(r);
  return s.read(msr::IA32_PMC0);
}

// On each generation, events count what their names say.
TEST(Counting, EventsOfOlderGenerationsCountWhatTheirNamesSay) {
  using enum Generation;
  const Retirement dram{.has_load = true, .load = {.level = HitLevel::dram, .dtlb_miss = true}};
  const Retirement l3{.has_load = true, .load = {.level = HitLevel::l3}};
  const Retirement device{.has_load = true, .load = {.level = HitLevel::uncached}};
  const Retirement store{.has_store = true, .store = {.dtlb_miss = true}};
  const Retirement not_taken{.branch = {.kind = BranchKind::conditional, .mispredicted = true}};
  const Retirement returned{.branch = {.kind = BranchKind::near_ret, .taken = true, .mispredicted = true}};
  struct Row {
    Generation generation;
    const char* event;
    std::array<std::uint64_t, 6> counts;  ///< For the six above.
  };
  for (const Row& row : {Row{nehalem, "MEM_UNCORE_RETIRED.LOCAL_DRAM", {1, 0, 0, 0, 0, 0}},
                         Row{nehalem, "MEM_UNCORE_RETIRED.REMOTE_DRAM", {}},
                         Row{nehalem, "MEM_UNCORE_RETIRED.UNCACHEABLE", {0, 0, 1, 0, 0, 0}},
                         Row{nehalem, "MEM_LOAD_RETIRED.LLC_MISS", {1, 0, 0, 0, 0, 0}},
                         Row{nehalem, "MEM_LOAD_RETIRED.LLC_UNSHARED_HIT", {0, 1, 0, 0, 0, 0}},
                         Row{westmere, "MEM_LOAD_RETIRED.DTLB_MISS", {1, 0, 0, 0, 0, 0}},
                         Row{westmere, "MEM_STORE_RETIRED.DTLB_MISS", {0, 0, 0, 1, 0, 0}},
                         Row{westmere_ex, "MEM_UNCORE_RETIRED.LOCAL_DRAM_AND_REMOTE_CACHE_HIT", {1, 0, 0, 0, 0, 0}},
                         Row{sandy_bridge, "MEM_LOAD_UOPS_MISC_RETIRED.LLC_MISS", {1, 0, 0, 0, 0, 0}},
                         Row{sandy_bridge, "MEM_LOAD_UOPS_RETIRED.LLC_HIT", {0, 1, 0, 0, 0, 0}},
                         Row{sandy_bridge, "MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_NONE", {0, 1, 0, 0, 0, 0}},
                         Row{sandy_bridge, "BR_MISP_RETIRED.NOT_TAKEN", {0, 0, 0, 0, 1, 0}},
                         Row{sandy_bridge, "BR_MISP_RETIRED.TAKEN", {0, 0, 0, 0, 0, 1}},
                         Row{ivy_bridge_ep, "MEM_LOAD_UOPS_LLC_MISS_RETIRED.LOCAL_DRAM", {1, 0, 0, 0, 0, 0}},
                         Row{haswell, "MEM_LOAD_UOPS_L3_MISS_RETIRED.LOCAL_DRAM", {1, 0, 0, 0, 0, 0}},
                         Row{haswell, "RTM_RETIRED.ABORTED", {}},
                         Row{broadwell, "BR_MISP_RETIRED.RET", {0, 0, 0, 0, 0, 1}},
                         Row{skylake, "MEM_LOAD_MISC_RETIRED.UC", {0, 0, 1, 0, 0, 0}},
                         Row{skylake, "MEM_INST_RETIRED.ANY", {1, 1, 1, 1, 0, 0}},
                         Row{skylake_sp, "MEM_LOAD_L3_MISS_RETIRED.REMOTE_HITM", {}}}) {
    unsigned i = 0;
    for (const Retirement* const r : {&dram, &l3, &device, &store, &not_taken, &returned})
      EXPECT_EQ(counted(row.generation, row.event, *r), row.counts.at(i++)) << row.event << " of retirement " << i;
  }
}

}  // namespace
}  // namespace vpmu::test
