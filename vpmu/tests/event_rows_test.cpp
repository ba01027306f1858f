// What the rows of Intel's event lists count.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "vpmu/counts.hpp"
#include "vpmu/event.hpp"
#include "vpmu/generation.hpp"

namespace vpmu::test {
namespace {

/// A code and umask, and what they count on some generations.
struct RowOfSome {
  std::uint8_t code, umask;
  Counts counts;
  Generation first, last;
};

/// Returns how many rows of all generations' there are.
unsigned expect_counts(std::initializer_list<RowOfSome> rows) {
  unsigned seen = 0;
  for (const RowOfSome& row : rows) {
    for (const GenerationDesc* const g : all_generations()) {
      if (g->generation < row.first || g->generation > row.last) continue;
      EXPECT_EQ(classify(*g, {.code = row.code, .umask = row.umask}).counts, row.counts)
          << g->name << std::hex << ' ' << unsigned{row.code} << ' ' << unsigned{row.umask};
      ++seen;
    }
  }
  return seen;
}

// SDM 3C tables 19-5 to 19-17, by code and umask: what the same umask counts changes between generations.
TEST(Events, ThoseOfThePipelineCountWhatTheManualSays) {
  using enum Counts;
  using enum Generation;
  constexpr Generation snb = sandy_bridge, ivb = ivy_bridge, ivb_ep = ivy_bridge_ep, hsw = haswell, hsw_ep = haswell_ep,
                       bdw = broadwell, bdw_ep = broadwell_ep, skl = skylake, last = skylake_sp, wsm_ex = westmere_ex;
  const unsigned seen = expect_counts({
      {0x03, 0x02, blocked_forwards, snb, last},
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
  });
  EXPECT_GT(seen, 550U);
}

// SDM 3C tables 19-5 to 19-17: of the caches, page walks, and lines under way.
TEST(Events, ThoseOfTheCachesCountWhatTheManualSays) {
  using enum Counts;
  using enum Generation;
  constexpr Generation nhm = nehalem, nhm_ex = nehalem_ex, wsm = westmere, wsm_ex = westmere_ex, snb = sandy_bridge,
                       ivb = ivy_bridge, ivb_ep = ivy_bridge_ep, hsw = haswell, bdw_ep = broadwell_ep, skl = skylake,
                       last = skylake_sp;
  const unsigned seen = expect_counts({
      {0x08, 0x04, load_walk_cycles, wsm, wsm_ex},
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
  });
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
