#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "vpmu/counter.hpp"
#include "vpmu/cycle_condition.hpp"
#include "vpmu/event.hpp"
#include "vpmu/offcore.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu {

/// One counter that counts now, and what a source must deliver for it.
struct PlanEntry {
  CounterId counter;
  EventSpec spec;            ///< As programmed; for a fixed counter only usr, os and any are meaningful.
  Counts counts{};           ///< What to count. CMASK/INV forms that hold in every cycle appear as `cycles` (rule P18).
  CountsList kinds{};        ///< Of Counts::several: EventClass::kinds.
  bool per_cycle{};          ///< CMASK or EDGE is in force: `counts` alone does not give the number (rule C4).
  CycleCondition cycle;      ///< State of the CMASK condition now, for a source that tracks it in bulk.
  bool usr{}, os{};          ///< Privilege levels in which it counts.
  std::uint64_t distance{};  ///< Events until the counter overflows, 1 .. 2^width.
  bool wants_overflow{};     ///< The overflow has an effect beyond its status bit: a PMI, or arming PEBS.
  bool precise{};            ///< The overflow must be found at its very instruction (PEBS).
  bool armed{};              ///< PEBS is armed: the next retirement of the event must be given to Pmu::retire().
  /// Of load_latency: each load with a latency above this, in core cycles, or an unknown one counts (rule L2). Empty
  /// where only some loads are tagged (rule L11): then each retired load must be given to Pmu::retire().
  std::optional<std::uint16_t> latency_over;
  OffcoreFilter offcore{};  ///< Of offcore and offcore_1: the requests and suppliers that count.

  /// The kinds that it counts: `counts`, or all of a union.
  [[nodiscard]] std::span<const Counts> what() const {
    return counts == Counts::several ? kinds.all() : std::span{&counts, 1};
  }
};

/// Which taken branches the LBR records now: MSR_LBR_SELECT and DEBUGCTL.LBR. A source that lets many instructions pass
/// in bulk may leave out all others. SDM 3B 17.4.2.
struct LbrFilter {
  std::array<std::uint8_t, 2> kinds{};  ///< At CPL 0, and at CPL 1 to 3: a bit for each BranchKind. 0: it records none.
  std::uint8_t depth{};                 ///< Entries: the LBR keeps only the last `depth` branches that it records.
  bool call_stack{};  ///< EN_CALLSTACK: a return removes an entry, so the source must report all that the LBR records.

  /// Whether the LBR records branches of this kind that are taken at this level.
  [[nodiscard]] bool records(BranchKind kind, unsigned cpl) const {
    return (kinds[cpl == 0 ? 0 : 1] >> static_cast<unsigned>(kind) & 1) != 0;
  }
};

/// What to count, and how far each counter is from its overflow: all that a counting source gets to know. A value; at
/// most max_counters entries in Q1 order.
struct CountPlan {
  std::array<PlanEntry, max_counters> entries{};
  unsigned size{};
  bool branches_wanted{};   ///< LBR or BTS records: each taken branch must reach the PMU if the source can see it, by
                            ///< Pmu::retire() or in bulk by Pmu::record_branches().
  bool branches_stored{};   ///< BTS: a record is written after each, which may fault. Report each by Pmu::retire(), or
                            ///< in bulk at most as many as Pmu::branches_storable() says.
  LbrFilter lbr_filter{};   ///< The branches that Pmu::record_branches() must be given.
  bool last_load_wanted{};  ///< Another counter's record may show the load that retired last (rule L6): it must reach
                            ///< the PMU, by Pmu::retire() or as CountDeltas::last_load.
  std::uint8_t prefetchers_off{};  ///< MSR_MISC_FEATURE_CONTROL: reg::misc_feature_control.
  bool caches_wanted{};  ///< Somebody beside the core counts what its caches do, such as the package's uncore: a
                         ///< source with a model of them must run it. Pmu::plan() leaves it unset.

  /// The first `size` entries.
  [[nodiscard]] std::span<const PlanEntry> active() const { return std::span{entries}.first(size); }
  /// Whether some counter waits for the retirement that its record is for.
  [[nodiscard]] bool any_armed() const {
    for (const PlanEntry& e : active())
      if (e.armed) return true;
    return false;
  }
};

/// Events that happened, by counter, in counter units (after CMASK, INV and EDGE). Zero for counters that are not in
/// the plan.
struct CountDeltas {
  std::array<std::uint64_t, max_counters> value{};
  /// Of counters with PlanEntry::per_cycle: state of the condition after these events. Empty: the source did not track
  /// it.
  std::array<std::optional<CycleCondition>, max_gp_counters> cycle{};
  /// Of those that it did not track: core cycles that passed at privilege levels in which the counter does not count.
  std::array<std::uint64_t, max_gp_counters> filtered_cycles{};
  /// Counters whose events the totals of a pipeline gave: no instruction of theirs was missed.
  CounterSet by_pipeline{};
  /// The last load among them, if CountPlan::last_load_wanted and there was one. A prefetch is none.
  std::optional<MemAccess> last_load{};
  /// The events of a counter, to be changed.
  [[nodiscard]] constexpr std::uint64_t& operator[](CounterId c) { return value[c.index()]; }
  /// The events of a counter.
  [[nodiscard]] constexpr std::uint64_t operator[](CounterId c) const { return value[c.index()]; }
};

}  // namespace vpmu
