#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "vpmu/cache_events.hpp"
#include "vpmu/event.hpp"
#include "vpmu/patterns.hpp"
#include "vpmu/pipeline_totals.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu {

/// What a source must observe to count a kind of event.
enum class ToldBy : std::uint8_t {
  nothing,       ///< Nothing: no source knows it.
  clock,         ///< A clock, while the processor is not halted.
  instruction,   ///< The instruction itself, and where it went: exact.
  slots,         ///< The number and kind of an instruction's micro-operations.
  target,        ///< Whether the address that it reads is RAM.
  caches,        ///< Caches and TLBs.
  fetch,         ///< Caches and TLBs, for the fetch of the instruction itself.
  timed_caches,  ///< Caches with prefetchers and page walks, which take their time: a model of the pipeline has it.
  prediction,    ///< The branch predictor.
  fusion,        ///< The decoder.
  pipeline,      ///< A model of the pipeline, and nothing else.
};

/// Which of an engine's own totals gives the count, for instructions that ran in bulk.
enum class Tally : std::uint8_t {
  none,
  zero,
  cycles,
  ref_cycles,
  instructions,
  bus_clock,
  bus_clock_alone,
  branches,
  near_branches,
  loads,
  stores,
  load_uops,
  store_uops,
  classes,
  pipeline  ///< None but a pipeline's: it reads 0 without one.
};

/// Everything about one kind of event. A new kind needs an enumerator in Counts and a row here.
struct CountsDesc {
  Counts counts;
  ToldBy told_by{};
  Tally tally{};
  BranchPattern branches{};
  AccessPattern accesses{};
  InstructionPattern instructions{};
  /// What it counts of what happens in the caches. Of several kinds, each happening counts once.
  CacheEvents caches{};
  /// How a model of the pipeline gives the count, where a source has one: by pipeline_count(). Empty for others.
  PipelinePattern pipeline{};
  /// What a retired instruction adds to the count besides its branch, its accesses and its class; null: nothing.
  std::uint64_t (*more)(const Retirement&){};
  /// The most events of one instruction when the engine's models tell them; for off-core requests, of one that is not a
  /// string instruction; of a pipeline's, in one cycle.
  std::uint8_t max{1};

  /// How often the event happened in one retirement. 0 for load_latency, frontend and offcore: their MSR selects what
  /// counts, and it is not known here.
  [[nodiscard]] constexpr std::uint64_t of(const Retirement& r) const {
    return unsigned{branches.matches(r.branch)} + accesses.of(r) +
           instructions.of_class(static_cast<unsigned>(r.kind)) + caches.sum(r.caches) +
           (more != nullptr ? more(r) : 0);
  }
};

namespace counts_rows {

using enum InstructionClass;
using enum CacheEvent;
/// Short, for the rows below.
using InstructionKinds = InstructionPattern;
/// Floating-point operations by type and length; fused and dot products are two.
constexpr InstructionPattern fp_scalar_single_of =
    InstructionKinds::of(sse_scalar_single_arithmetic, avx_scalar_single_arithmetic).and_twice(avx_scalar_single_twice);
/// The same.
constexpr InstructionPattern fp_scalar_double_of =
    InstructionKinds::of(sse_scalar_double_arithmetic, avx_scalar_double_arithmetic).and_twice(avx_scalar_double_twice);
/// The same.
constexpr InstructionPattern fp_128_single_of =
    InstructionKinds::of(sse_packed_single_arithmetic, avx_packed_single_arithmetic)
        .and_twice(sse_packed_single_twice, avx_packed_single_twice);
/// The same.
constexpr InstructionPattern fp_128_double_of =
    InstructionKinds::of(sse_packed_double_arithmetic, avx_packed_double_arithmetic)
        .and_twice(sse_packed_double_twice, avx_packed_double_twice);
/// The same.
constexpr InstructionPattern fp_256_single_of =
    InstructionKinds::of(avx_256_single_arithmetic).and_twice(avx_256_single_twice);
/// The same.
constexpr InstructionPattern fp_256_double_of =
    InstructionKinds::of(avx_256_double_arithmetic).and_twice(avx_256_double_twice);
/// The same.
constexpr InstructionPattern fp_scalar_of = fp_scalar_single_of | fp_scalar_double_of;
/// The same.
constexpr InstructionPattern fp_packed_of = fp_128_single_of | fp_128_double_of | fp_256_single_of | fp_256_double_of;
/// The same.
constexpr InstructionPattern fp_single_of = fp_scalar_single_of | fp_128_single_of | fp_256_single_of;
/// The same.
constexpr InstructionPattern fp_double_of = fp_scalar_double_of | fp_128_double_of | fp_256_double_of;

/// A row for instructions of some classes.
constexpr CountsDesc by_class(Counts counts, InstructionPattern instructions, ToldBy told_by = ToldBy::slots) {
  CountsDesc row{.counts = counts, .told_by = told_by, .tally = Tally::classes};
  row.instructions = instructions;
  row.max = instructions.twice == 0 ? 1 : 2;
  return row;
}

/// Loads, stores, or both, by what the TLBs had of them.
constexpr AccessPattern loads_of(TlbMiss tlb, PageSizes pages = all_page_sizes) {
  return {.loads = true, .tlb = tlb, .pages = pages};
}
/// The same.
constexpr AccessPattern stores_of(TlbMiss tlb, PageSizes pages = all_page_sizes) {
  return {.stores = true, .tlb = tlb, .pages = pages};
}
/// The same.
constexpr AccessPattern both_of(TlbMiss tlb, PageSizes pages = all_page_sizes) {
  return {.loads = true, .stores = true, .tlb = tlb, .pages = pages};
}
/// A row for them.
constexpr CountsDesc by_tlb(Counts counts, AccessPattern accesses) {
  CountsDesc row{.counts = counts, .told_by = ToldBy::caches};
  row.accesses = accesses;
  row.max = accesses.loads && accesses.stores ? 2 : 1;
  return row;
}

/// A row for the lines and pages of code that an instruction is in, which are two at most.
constexpr CountsDesc by_fetch(Counts counts, std::uint64_t (*more)(const Retirement&)) {
  CountsDesc row{.counts = counts, .told_by = ToldBy::caches};
  row.more = more;
  row.max = 2;
  return row;
}

/// The most of one instruction: it accesses ten lines, two of which are of code (see the rows of off-core requests).
/// For a line of data the L1D's prefetchers ask for one more, or the L2's for five. It walks for up to six pages, by
/// three entries each.
constexpr std::uint8_t max_demands = 18;
/// The same.
constexpr std::uint8_t max_prefetches = 40;
/// The same.
constexpr std::uint8_t max_walk_loads = 18;
/// A row for what happens in the caches.
template <class... Events>
constexpr CountsDesc by_caches(Counts counts, std::uint8_t max, Events... events) {
  CountsDesc row{.counts = counts, .told_by = ToldBy::caches};
  row.caches = CacheEvents::of(events...);
  row.max = max;
  return row;
}
/// The same for what only prefetchers and page walks do.
template <class... Events>
constexpr CountsDesc by_timed_caches(Counts counts, std::uint8_t max, Events... events) {
  CountsDesc row = by_caches(counts, max, events...);
  row.told_by = ToldBy::timed_caches;
  return row;
}

/// A row for branches of some kinds.
constexpr CountsDesc by_branch(Counts counts, BranchPattern branches) {
  CountsDesc row{.counts = counts, .told_by = ToldBy::instruction};
  if (branches.only_mispredicted) row.told_by = ToldBy::prediction;
  row.branches = branches;
  return row;
}

/// The most in one cycle: micro-ops that the back end takes. 248966, chapter 2, here and below.
constexpr std::uint8_t max_slots = 4;
/// Micro-ops that begin to execute.
constexpr std::uint8_t max_executed = 8;
/// Micro-ops that the front end's queue takes.
constexpr std::uint8_t max_delivered = 6;
/// Lines under way.
constexpr std::uint8_t max_pending = 32;
/// Page walks under way.
constexpr std::uint8_t max_walks = 2;
/// Umask of CYCLE_ACTIVITY.
constexpr std::uint8_t max_activity = 0x14;
/// A row for what only a pipeline tells: the sum of the quantities.
template <class... Quantities>
constexpr CountsDesc by_pipeline(Counts counts, std::uint8_t max, Quantities... quantities) {
  CountsDesc row{.counts = counts, .told_by = ToldBy::pipeline, .tally = Tally::pipeline};
  row.pipeline.of = PipelineQuantities::of(quantities...);
  row.max = max;
  return row;
}
/// The same for cycles with `number` micro-ops that begin to execute.
constexpr CountsDesc by_executed(Counts counts, std::uint8_t number) {
  CountsDesc row = by_pipeline(counts, 1, PipelineQuantity::executed);
  row.pipeline.form = PipelinePattern::Form::exactly;
  row.pipeline.number = number;
  return row;
}
/// The same for an event of CYCLE_ACTIVITY.
constexpr CountsDesc by_activity(CountsDesc row) {
  if (row.pipeline.form == PipelinePattern::Form::amount) row.pipeline.form = PipelinePattern::Form::some;
  row.pipeline.by_umask = true;
  row.max = max_activity;
  return row;
}
/// The same for cycles with some of a quantity.
constexpr CountsDesc by_activity(Counts counts, PipelineQuantity quantity) {
  return by_activity(by_pipeline(counts, 1, quantity));
}

/// Whether its load met such a prefetch.
constexpr std::uint64_t met(const Retirement& r, Prefetched prefetch) {
  return r.has_load && r.load.met_prefetch == prefetch ? 1 : 0;
}

/// Conditional branches.
inline constexpr auto conditional = BranchKinds::of(BranchKind::conditional);
/// Near calls.
inline constexpr auto calls = BranchKinds::of(BranchKind::near_rel_call, BranchKind::near_ind_call);
/// Near calls and jumps, by where their target is.
inline constexpr auto direct_calls = BranchKinds::of(BranchKind::near_rel_call);
/// The same.
inline constexpr auto indirect_calls = BranchKinds::of(BranchKind::near_ind_call);
/// The same.
inline constexpr auto direct_jumps = BranchKinds::of(BranchKind::near_rel_jmp);
/// The same.
inline constexpr auto indirect_jumps = BranchKinds::of(BranchKind::near_ind_jmp);
/// Indirect calls and jumps.
inline constexpr auto indirect = BranchKinds::of(BranchKind::near_ind_jmp, BranchKind::near_ind_call);
/// Conditional branches and jumps.
inline constexpr auto not_calls =
    BranchKinds::of(BranchKind::conditional, BranchKind::near_rel_jmp, BranchKind::near_ind_jmp);
/// Near returns.
inline constexpr auto returns = BranchKinds::of(BranchKind::near_ret);
/// Far branches, interrupts and exceptions.
inline constexpr auto far = BranchKinds::of(BranchKind::far);
/// All that are not far.
inline constexpr auto near =
    BranchKinds::of(BranchKind::conditional, BranchKind::near_rel_call, BranchKind::near_ind_call, BranchKind::near_ret,
                    BranchKind::near_ind_jmp, BranchKind::near_rel_jmp);
/// Near and far.
inline constexpr auto all_branches =
    BranchKinds::of(BranchKind::conditional, BranchKind::near_rel_call, BranchKind::near_ind_call, BranchKind::near_ret,
                    BranchKind::near_ind_jmp, BranchKind::near_rel_jmp, BranchKind::far);

/// Served by the L3 after it asked another core.
inline constexpr HitLevels other_core = hit_levels(HitLevel::l3_shared, HitLevel::l3_modified);
/// Served by the L3, whether or not another core had the line.
inline constexpr HitLevels any_l3 = hit_levels(HitLevel::l3) | other_core;
/// The L2 was missed.
inline constexpr HitLevels below_l2 = any_l3 | hit_levels(HitLevel::dram);
/// The L1D was missed.
inline constexpr HitLevels below_l1 = below_l2 | hit_levels(HitLevel::l2);

/// One row for each kind, in the order of Counts.
inline constexpr auto rows = std::to_array<CountsDesc>({
    {.counts = Counts::unmodelled, .tally = Tally::zero},
    {.counts = Counts::cycles,
     .told_by = ToldBy::clock,
     .tally = Tally::cycles,
     .more = [](const Retirement& r) { return r.cycles; }},
    {.counts = Counts::ref_cycles,
     .told_by = ToldBy::clock,
     .tally = Tally::ref_cycles,
     .more = [](const Retirement& r) { return r.ref_cycles; }},
    {.counts = Counts::bus_cycles,
     .told_by = ToldBy::clock,
     .tally = Tally::bus_clock,
     .more = [](const Retirement& r) { return std::uint64_t{r.bus_cycles}; }},
    {.counts = Counts::bus_cycles_alone,
     .told_by = ToldBy::clock,
     .tally = Tally::bus_clock_alone,
     .more = [](const Retirement& r) { return r.alone ? std::uint64_t{r.bus_cycles} : 0; }},
    {.counts = Counts::instructions,
     .told_by = ToldBy::instruction,
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return r.instructions(); }},
    {.counts = Counts::uops_retired,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .pipeline = {.of = PipelineQuantities::of(PipelineQuantity::retired_unfused)},
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .max = max_executed},
    {.counts = Counts::slots_retired,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .pipeline = {.of = PipelineQuantities::of(PipelineQuantity::retired)},
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .max = max_slots},
    {.counts = Counts::uops_issued,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .pipeline = {.of = PipelineQuantities::of(PipelineQuantity::issued)},
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .max = max_slots},
    {.counts = Counts::uops_executed,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .pipeline = {.of = PipelineQuantities::of(PipelineQuantity::executed)},
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .max = max_executed},
    {.counts = Counts::branches,
     .told_by = ToldBy::instruction,
     .tally = Tally::branches,
     .branches = {.kinds = all_branches}},
    {.counts = Counts::branches_taken, .told_by = ToldBy::instruction, .branches = {.kinds = near, .not_taken = false}},
    {.counts = Counts::branches_not_taken,
     .told_by = ToldBy::instruction,
     .branches = {.kinds = conditional, .taken = false}},
    {.counts = Counts::branches_conditional, .told_by = ToldBy::instruction, .branches = {.kinds = conditional}},
    by_branch(Counts::branches_conditional_taken, {.kinds = conditional, .not_taken = false}),
    by_branch(Counts::branches_jump_direct, {.kinds = direct_jumps}),
    by_branch(Counts::branches_jump_indirect, {.kinds = indirect_jumps}),
    by_branch(Counts::branches_not_call, {.kinds = not_calls}),
    {.counts = Counts::branches_call, .told_by = ToldBy::instruction, .branches = {.kinds = calls}},
    by_branch(Counts::branches_call_direct, {.kinds = direct_calls}),
    by_branch(Counts::branches_call_indirect, {.kinds = indirect_calls}),
    {.counts = Counts::branches_return, .told_by = ToldBy::instruction, .branches = {.kinds = returns}},
    {.counts = Counts::branches_far, .told_by = ToldBy::instruction, .branches = {.kinds = far}},
    {.counts = Counts::branches_near,
     .told_by = ToldBy::instruction,
     .tally = Tally::near_branches,
     .branches = {.kinds = near}},
    {.counts = Counts::mispredicts,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = all_branches, .only_mispredicted = true}},
    {.counts = Counts::mispredicts_conditional,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = conditional, .only_mispredicted = true}},
    {.counts = Counts::mispredicts_taken,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = near, .not_taken = false, .only_mispredicted = true}},
    {.counts = Counts::mispredicts_not_taken,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = conditional, .taken = false, .only_mispredicted = true}},
    by_branch(Counts::mispredicts_conditional_taken,
              {.kinds = conditional, .not_taken = false, .only_mispredicted = true}),
    by_branch(Counts::mispredicts_jump_direct, {.kinds = direct_jumps, .only_mispredicted = true}),
    by_branch(Counts::mispredicts_jump_indirect, {.kinds = indirect_jumps, .only_mispredicted = true}),
    by_branch(Counts::mispredicts_not_call, {.kinds = not_calls, .only_mispredicted = true}),
    {.counts = Counts::mispredicts_call,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = calls, .only_mispredicted = true}},
    by_branch(Counts::mispredicts_call_direct, {.kinds = direct_calls, .only_mispredicted = true}),
    by_branch(Counts::mispredicts_call_indirect, {.kinds = indirect_calls, .only_mispredicted = true}),
    by_branch(Counts::mispredicts_indirect, {.kinds = indirect, .only_mispredicted = true}),
    {.counts = Counts::mispredicts_return,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = returns, .only_mispredicted = true}},
    {.counts = Counts::baclears,
     .told_by = ToldBy::prediction,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.baclears}; }},
    {.counts = Counts::loads, .told_by = ToldBy::instruction, .tally = Tally::loads, .accesses = {.loads = true}},
    {.counts = Counts::stores, .told_by = ToldBy::instruction, .tally = Tally::stores, .accesses = {.stores = true}},
    {.counts = Counts::load_uops,
     .told_by = ToldBy::instruction,
     .tally = Tally::load_uops,
     .accesses = {.loads = true, .each = true}},
    {.counts = Counts::store_uops,
     .told_by = ToldBy::instruction,
     .tally = Tally::store_uops,
     .accesses = {.stores = true, .each = true}},
    {.counts = Counts::memory_instructions,
     .told_by = ToldBy::instruction,
     .accesses = {.loads = true, .stores = true, .once = true}},
    {.counts = Counts::locked_loads, .told_by = ToldBy::instruction, .accesses = {.loads = true, .only_locked = true}},
    {.counts = Counts::locked_stores,
     .told_by = ToldBy::instruction,
     .accesses = {.stores = true, .only_locked = true}},
    {.counts = Counts::uncached_loads,
     .told_by = ToldBy::target,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::uncached)}},
    {.counts = Counts::split_loads, .told_by = ToldBy::instruction, .accesses = {.loads = true, .only_split = true}},
    {.counts = Counts::split_stores, .told_by = ToldBy::instruction, .accesses = {.stores = true, .only_split = true}},
    by_tlb(Counts::dtlb_miss_loads, loads_of(TlbMiss::first)),
    by_tlb(Counts::dtlb_miss_stores, stores_of(TlbMiss::first)),
    by_tlb(Counts::dtlb_misses, both_of(TlbMiss::first)),
    by_tlb(Counts::dtlb_stlb_hits, both_of(TlbMiss::first_only)),
    by_tlb(Counts::dtlb_walks, both_of(TlbMiss::both)),
    by_tlb(Counts::dtlb_stlb_hit_loads, loads_of(TlbMiss::first_only)),
    by_tlb(Counts::dtlb_stlb_hit_stores, stores_of(TlbMiss::first_only)),
    by_tlb(Counts::stlb_miss_loads, loads_of(TlbMiss::both)),
    by_tlb(Counts::stlb_miss_stores, stores_of(TlbMiss::both)),
    by_tlb(Counts::stlb_miss_loads_small, loads_of(TlbMiss::both, page_sizes(PageSize::small))),
    by_tlb(Counts::stlb_miss_loads_large, loads_of(TlbMiss::both, page_sizes(PageSize::large))),
    by_tlb(Counts::stlb_miss_loads_huge, loads_of(TlbMiss::both, page_sizes(PageSize::huge))),
    by_tlb(Counts::stlb_miss_stores_small, stores_of(TlbMiss::both, page_sizes(PageSize::small))),
    by_tlb(Counts::stlb_miss_stores_large, stores_of(TlbMiss::both, page_sizes(PageSize::large))),
    by_tlb(Counts::stlb_miss_stores_huge, stores_of(TlbMiss::both, page_sizes(PageSize::huge))),
    by_tlb(Counts::dtlb_walks_large, both_of(TlbMiss::both, page_sizes(PageSize::large))),
    by_tlb(Counts::dtlb_stlb_hit_loads_small, loads_of(TlbMiss::first_only, page_sizes(PageSize::small))),
    by_tlb(Counts::dtlb_stlb_hit_loads_large, loads_of(TlbMiss::first_only, page_sizes(PageSize::large))),
    by_tlb(Counts::dtlb_stlb_hit_stores_small, stores_of(TlbMiss::first_only, page_sizes(PageSize::small))),
    by_tlb(Counts::dtlb_stlb_hit_stores_large, stores_of(TlbMiss::first_only, page_sizes(PageSize::large))),
    {.counts = Counts::l1_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l1)}},
    {.counts = Counts::l1_miss, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = below_l1}},
    {.counts = Counts::lfb_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::lfb)}},
    {.counts = Counts::l2_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l2)}},
    {.counts = Counts::l2_miss, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = below_l2}},
    {.counts = Counts::l3_hit, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = any_l3}},
    {.counts = Counts::l3_hit_unshared,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3)}},
    {.counts = Counts::l3_hit_shared,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3_shared)}},
    {.counts = Counts::l3_hit_modified,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3_modified)}},
    {.counts = Counts::l3_hit_other_core, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = other_core}},
    {.counts = Counts::l3_miss,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::dram)}},
    // Data and code, SDM 3B 18.2.1.2. At most for one instruction: two lines of code, its load and its store.
    {.counts = Counts::llc_references,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .stores = true, .levels = below_l2},
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.llc_references}; },
     .max = 4},
    {.counts = Counts::llc_misses,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .stores = true, .levels = hit_levels(HitLevel::dram)},
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.llc_misses}; },
     .max = 4},
    {.counts = Counts::l1d_fills,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return std::uint64_t{r.l1d_fills}; },
     .max = 8},
    by_fetch(Counts::l1i_misses, [](const Retirement& r) { return std::uint64_t{r.frontend.l1i_misses}; }),
    by_fetch(Counts::l1i_hits, [](const Retirement& r) { return std::uint64_t{r.frontend.l1i_hits}; }),
    by_fetch(Counts::l1i_reads,
             [](const Retirement& r) { return std::uint64_t{r.frontend.l1i_hits} + r.frontend.l1i_misses; }),
    by_fetch(Counts::itlb_stlb_hits, [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_stlb_hits}; }),
    by_fetch(Counts::itlb_walks, [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_walks}; }),
    by_fetch(Counts::itlb_walks_small,
             [](const Retirement& r) {
               return static_cast<std::uint64_t>(r.frontend.itlb_walks - r.frontend.itlb_large_walks -
                                                 r.frontend.itlb_huge_walks);
             }),
    by_fetch(Counts::itlb_walks_large,
             [](const Retirement& r) { return static_cast<std::uint64_t>(r.frontend.itlb_large_walks); }),
    by_fetch(Counts::itlb_walks_huge,
             [](const Retirement& r) { return static_cast<std::uint64_t>(r.frontend.itlb_huge_walks); }),
    by_fetch(Counts::itlb_stlb_hits_small,
             [](const Retirement& r) {
               return static_cast<std::uint64_t>(r.frontend.itlb_stlb_hits - r.frontend.itlb_large_stlb_hits);
             }),
    by_fetch(Counts::itlb_stlb_hits_large,
             [](const Retirement& r) { return static_cast<std::uint64_t>(r.frontend.itlb_large_stlb_hits); }),
    by_fetch(Counts::itlb_any_misses,
             [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_stlb_hits} + r.frontend.itlb_walks; }),
    {.counts = Counts::itlb_misses,
     .told_by = ToldBy::fetch,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_miss}; }},
    by_caches(Counts::l2_data_reads, max_demands, l2_data_read_hit, l2_data_read_miss),
    by_caches(Counts::l2_data_read_hits, max_demands, l2_data_read_hit),
    by_caches(Counts::l2_data_read_misses, max_demands, l2_data_read_miss),
    by_caches(Counts::l2_rfos, max_demands, l2_rfo_hit, l2_rfo_miss),
    by_caches(Counts::l2_rfo_hits, max_demands, l2_rfo_hit),
    by_caches(Counts::l2_rfo_misses, max_demands, l2_rfo_miss),
    by_caches(Counts::l2_code_reads, 2, l2_code_read_hit, l2_code_read_miss),
    by_caches(Counts::l2_code_read_hits, 2, l2_code_read_hit),
    by_caches(Counts::l2_code_read_misses, 2, l2_code_read_miss),
    by_caches(Counts::l2_demands, max_demands, l2_data_read_hit, l2_data_read_miss, l2_rfo_hit, l2_rfo_miss,
              l2_code_read_hit, l2_code_read_miss),
    by_caches(Counts::l2_demand_misses, max_demands, l2_data_read_miss, l2_rfo_miss, l2_code_read_miss),
    by_timed_caches(Counts::l2_prefetches, max_prefetches, l2_prefetch_hit, l2_prefetch_miss),
    by_timed_caches(Counts::l2_prefetch_hits, max_prefetches, l2_prefetch_hit),
    by_timed_caches(Counts::l2_prefetch_misses, max_prefetches, l2_prefetch_miss),
    by_caches(Counts::l2_data_requests, max_demands + max_prefetches, l2_data_read_hit, l2_data_read_miss,
              l2_prefetch_hit, l2_prefetch_miss),
    by_caches(Counts::l2_references, max_demands + max_prefetches, l2_data_read_hit, l2_data_read_miss, l2_rfo_hit,
              l2_rfo_miss, l2_code_read_hit, l2_code_read_miss, l2_prefetch_hit, l2_prefetch_miss),
    by_caches(Counts::l2_misses, max_demands + max_prefetches, l2_data_read_miss, l2_rfo_miss, l2_code_read_miss,
              l2_prefetch_miss),
    by_caches(Counts::l2_fills, max_demands + max_prefetches + max_walk_loads, l2_data_read_miss, l2_rfo_miss,
              l2_code_read_miss, l2_prefetch_miss, data_walk_l3, data_walk_memory, code_walk_l3, code_walk_memory),
    by_caches(Counts::reads_off_core, max_demands + max_prefetches, l2_data_read_miss, l2_prefetch_miss),
    by_caches(Counts::any_reads_off_core, max_demands + max_prefetches, l2_data_read_miss, l2_prefetch_miss,
              l2_code_read_miss),
    by_timed_caches(Counts::l1d_prefetches, max_demands, l1d_prefetch_hit, l1d_prefetch_miss),
    by_timed_caches(Counts::l1d_prefetch_misses, max_demands, l1d_prefetch_miss),
    by_timed_caches(Counts::data_walk_l1d, max_walk_loads, CacheEvent::data_walk_l1d),
    by_timed_caches(Counts::data_walk_l2, max_walk_loads, CacheEvent::data_walk_l2),
    by_timed_caches(Counts::data_walk_l3, max_walk_loads, CacheEvent::data_walk_l3),
    by_timed_caches(Counts::data_walk_memory, max_walk_loads, CacheEvent::data_walk_memory),
    by_timed_caches(Counts::code_walk_l1d, max_walk_loads, CacheEvent::code_walk_l1d),
    by_timed_caches(Counts::code_walk_l2, max_walk_loads, CacheEvent::code_walk_l2),
    by_timed_caches(Counts::code_walk_l3, max_walk_loads, CacheEvent::code_walk_l3),
    by_timed_caches(Counts::code_walk_memory, max_walk_loads, CacheEvent::code_walk_memory),
    by_class(Counts::nops, InstructionKinds::of(nop), ToldBy::instruction),
    by_class(Counts::x87_operations, InstructionKinds::of(x87_arithmetic, x87_transcendental, x87_operation)),
    by_class(Counts::x87_uops, InstructionKinds::of(x87_arithmetic, x87_transcendental, x87_operation, x87_other)),
    by_class(Counts::mmx,
             InstructionKinds::of(mmx, mmx_multiply, mmx_shift, mmx_pack, mmx_unpack, mmx_logical, mmx_arithmetic,
                                  mmx_shuffle),
             ToldBy::instruction),
    by_class(Counts::sse_packed_single,
             InstructionKinds::of(sse_packed_single, sse_packed_single_arithmetic, sse_packed_single_twice)),
    by_class(Counts::sse_scalar_single, InstructionKinds::of(sse_scalar_single, sse_scalar_single_arithmetic)),
    by_class(Counts::sse_packed_double,
             InstructionKinds::of(sse_packed_double, sse_packed_double_arithmetic, sse_packed_double_twice)),
    by_class(Counts::sse_scalar_double, InstructionKinds::of(sse_scalar_double, sse_scalar_double_arithmetic)),
    by_class(Counts::sse_integer, InstructionKinds::of(sse_integer, sse_integer_multiply, sse_integer_shift,
                                                       sse_integer_pack, sse_integer_unpack, sse_integer_logical,
                                                       sse_integer_arithmetic, sse_integer_shuffle)),
    by_class(Counts::avx_256, InstructionKinds::of(avx_256, avx_256_single_arithmetic, avx_256_double_arithmetic,
                                                   avx_256_single_twice, avx_256_double_twice)),
    by_class(Counts::fp_x87, InstructionKinds::of(integer_product, x87_arithmetic, x87_transcendental)),
    by_class(Counts::fp_scalar_single, fp_scalar_single_of, ToldBy::instruction),
    by_class(Counts::fp_scalar_double, fp_scalar_double_of, ToldBy::instruction),
    by_class(Counts::fp_128_single, fp_128_single_of, ToldBy::instruction),
    by_class(Counts::fp_128_double, fp_128_double_of, ToldBy::instruction),
    by_class(Counts::fp_256_single, fp_256_single_of, ToldBy::instruction),
    by_class(Counts::fp_256_double, fp_256_double_of, ToldBy::instruction),
    by_class(Counts::fp_scalar, fp_scalar_of, ToldBy::instruction),
    by_class(Counts::fp_packed, fp_packed_of, ToldBy::instruction),
    by_class(Counts::fp_4_flops, fp_128_single_of | fp_256_double_of, ToldBy::instruction),
    by_class(Counts::fp_single, fp_single_of, ToldBy::instruction),
    by_class(Counts::fp_double, fp_double_of, ToldBy::instruction),
    by_class(Counts::fp_any, fp_single_of | fp_double_of, ToldBy::instruction),
    by_class(Counts::mmx_operations, InstructionKinds::of(mmx_multiply, mmx_shift, mmx_pack, mmx_unpack, mmx_logical,
                                                          mmx_arithmetic, mmx_shuffle)),
    by_class(Counts::mmx_multiply, InstructionKinds::of(mmx_multiply)),
    by_class(Counts::mmx_shift, InstructionKinds::of(mmx_shift)),
    by_class(Counts::mmx_pack, InstructionKinds::of(mmx_pack)),
    by_class(Counts::mmx_unpack, InstructionKinds::of(mmx_unpack)),
    by_class(Counts::mmx_logical, InstructionKinds::of(mmx_logical)),
    by_class(Counts::mmx_arithmetic, InstructionKinds::of(mmx_arithmetic)),
    by_class(Counts::mmx_shuffle, InstructionKinds::of(mmx_shuffle)),
    by_class(Counts::sse_integer_operations,
             InstructionKinds::of(sse_integer_multiply, sse_integer_shift, sse_integer_pack, sse_integer_unpack,
                                  sse_integer_logical, sse_integer_arithmetic, sse_integer_shuffle)),
    by_class(Counts::sse_integer_multiply, InstructionKinds::of(sse_integer_multiply)),
    by_class(Counts::sse_integer_shift, InstructionKinds::of(sse_integer_shift)),
    by_class(Counts::sse_integer_pack, InstructionKinds::of(sse_integer_pack)),
    by_class(Counts::sse_integer_unpack, InstructionKinds::of(sse_integer_unpack)),
    by_class(Counts::sse_integer_logical, InstructionKinds::of(sse_integer_logical)),
    by_class(Counts::sse_integer_arithmetic, InstructionKinds::of(sse_integer_arithmetic)),
    by_class(Counts::sse_integer_shuffle, InstructionKinds::of(sse_integer_shuffle)),
    by_class(Counts::prefetches_nta, InstructionKinds::of(prefetch_nta), ToldBy::instruction),
    by_class(Counts::prefetches_t0, InstructionKinds::of(prefetch_t0), ToldBy::instruction),
    by_class(Counts::prefetches_t1_t2, InstructionKinds::of(prefetch_t1_t2), ToldBy::instruction),
    by_class(Counts::prefetches_w, InstructionKinds::of(prefetch_w), ToldBy::instruction),
    by_class(Counts::prefetches, InstructionKinds::of(prefetch_nta, prefetch_t0, prefetch_t1_t2, prefetch_w),
             ToldBy::instruction),
    {.counts = Counts::loads_met_prefetch,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return met(r, Prefetched::by_software); }},
    {.counts = Counts::loads_met_hardware_prefetch,
     .told_by = ToldBy::timed_caches,
     .more = [](const Retirement& r) { return met(r, Prefetched::by_hardware); }},
    {.counts = Counts::macro_fused,
     .told_by = ToldBy::fusion,
     .more = [](const Retirement& r) { return std::uint64_t{r.macro_fused}; }},
    // What only a pipeline tells.
    by_pipeline(Counts::uops_on_port_0, 1, PipelineQuantity::port_0),
    by_pipeline(Counts::uops_on_port_1, 1, PipelineQuantity::port_1),
    by_pipeline(Counts::uops_on_port_2, 1, PipelineQuantity::port_2),
    by_pipeline(Counts::uops_on_port_3, 1, PipelineQuantity::port_3),
    by_pipeline(Counts::uops_on_port_4, 1, PipelineQuantity::port_4),
    by_pipeline(Counts::uops_on_port_5, 1, PipelineQuantity::port_5),
    by_pipeline(Counts::uops_on_port_6, 1, PipelineQuantity::port_6),
    by_pipeline(Counts::uops_on_port_7, 1, PipelineQuantity::port_7),
    by_pipeline(Counts::slots_not_delivered, max_slots, PipelineQuantity::not_delivered),
    by_pipeline(Counts::uops_from_dsb, max_delivered, PipelineQuantity::from_dsb),
    by_pipeline(Counts::uops_from_mite, max_delivered, PipelineQuantity::from_mite),
    by_pipeline(Counts::uops_from_lsd, max_delivered, PipelineQuantity::from_lsd),
    by_pipeline(Counts::microcode_from_dsb, max_delivered, PipelineQuantity::microcode_from_dsb),
    by_pipeline(Counts::microcode_from_mite, max_delivered, PipelineQuantity::microcode_from_mite),
    by_pipeline(Counts::microcode, max_delivered, PipelineQuantity::microcode_from_dsb,
                PipelineQuantity::microcode_from_mite),
    by_pipeline(Counts::all_uops_from_dsb, max_delivered, PipelineQuantity::from_dsb,
                PipelineQuantity::microcode_from_dsb),
    by_pipeline(Counts::all_uops_from_mite, max_delivered, PipelineQuantity::from_mite,
                PipelineQuantity::microcode_from_mite),
    by_pipeline(Counts::uops_delivered, max_delivered, PipelineQuantity::from_dsb, PipelineQuantity::from_mite,
                PipelineQuantity::microcode_from_dsb, PipelineQuantity::microcode_from_mite),
    by_pipeline(Counts::dsb_to_mite_cycles, 1, PipelineQuantity::dsb_to_mite),
    by_pipeline(Counts::prefix_stall_cycles, 1, PipelineQuantity::prefix_stall),
    by_pipeline(Counts::recovery_cycles, 1, PipelineQuantity::recovery),
    by_pipeline(Counts::resteer_cycles, 1, PipelineQuantity::resteer),
    by_pipeline(Counts::resource_stall_cycles, 1, PipelineQuantity::resource_stall),
    by_pipeline(Counts::scheduler_full_cycles, 1, PipelineQuantity::scheduler_full),
    by_pipeline(Counts::reorder_full_cycles, 1, PipelineQuantity::reorder_full),
    by_pipeline(Counts::store_queue_full_cycles, 1, PipelineQuantity::store_queue_full),
    by_pipeline(Counts::scheduler_empty_cycles, 1, PipelineQuantity::scheduler_empty),
    by_pipeline(Counts::scheduler_waits_cycles, 1, PipelineQuantity::scheduler_waits),
    by_pipeline(Counts::stores_hold_up_cycles, 1, PipelineQuantity::stores_hold_up),
    by_pipeline(Counts::dividing_cycles, 1, PipelineQuantity::dividing),
    by_pipeline(Counts::divider_uops, 1, PipelineQuantity::divider_uops),
    by_pipeline(Counts::blocked_forwards, 2, PipelineQuantity::blocked_forwards),
    by_pipeline(Counts::aliased_loads, 2, PipelineQuantity::aliased_loads),
    by_pipeline(Counts::machine_clear_cycles, 1, PipelineQuantity::machine_clear),
    by_pipeline(Counts::self_modifying_code, 1, PipelineQuantity::self_modifying_code),
    by_pipeline(Counts::l1d_lines_pending, max_pending, PipelineQuantity::l1d_lines_pending),
    by_pipeline(Counts::fill_buffers_full_cycles, 1, PipelineQuantity::fill_buffers_full),
    by_pipeline(Counts::demand_reads_outstanding, max_pending, PipelineQuantity::demand_reads_outstanding),
    by_pipeline(Counts::memory_reads_outstanding, max_pending, PipelineQuantity::memory_reads_outstanding),
    by_pipeline(Counts::reads_outstanding, max_pending, PipelineQuantity::reads_outstanding),
    by_pipeline(Counts::rfos_outstanding, max_pending, PipelineQuantity::rfos_outstanding),
    by_pipeline(Counts::code_reads_outstanding, 1, PipelineQuantity::code_reads_outstanding),
    by_pipeline(Counts::load_walk_cycles, max_walks, PipelineQuantity::load_walks),
    by_pipeline(Counts::store_walk_cycles, max_walks, PipelineQuantity::store_walks),
    by_pipeline(Counts::data_walk_cycles, max_walks, PipelineQuantity::load_walks, PipelineQuantity::store_walks),
    by_pipeline(Counts::code_walk_cycles, 1, PipelineQuantity::code_walks),
    by_executed(Counts::one_uop_cycles, 1),
    by_executed(Counts::two_uop_cycles, 2),
    by_executed(Counts::three_uop_cycles, 3),
    by_executed(Counts::four_uop_cycles, 4),
    by_activity(by_executed(Counts::stall_cycles, 0)),
    by_activity(Counts::load_cycles, PipelineQuantity::loads_pending),
    by_activity(Counts::l1d_miss_cycles, PipelineQuantity::l1d_misses_pending),
    by_activity(Counts::l2_miss_cycles, PipelineQuantity::l2_misses_pending),
    by_activity(Counts::l3_miss_cycles, PipelineQuantity::l3_misses_pending),
    by_activity(Counts::load_stall_cycles, PipelineQuantity::load_stall),
    by_activity(Counts::l1d_miss_stall_cycles, PipelineQuantity::l1d_miss_stall),
    by_activity(Counts::l2_miss_stall_cycles, PipelineQuantity::l2_miss_stall),
    by_activity(Counts::l3_miss_stall_cycles, PipelineQuantity::l3_miss_stall),
    {.counts = Counts::never, .tally = Tally::zero},
    // Tagged loads; a source that knows no latency lets all of them pass the threshold.
    {.counts = Counts::load_latency, .told_by = ToldBy::caches},
    {.counts = Counts::frontend, .told_by = ToldBy::fetch},
    // Two lines of code, and two lines of each page that its load and its store touch; what is read for those, too.
    {.counts = Counts::offcore, .told_by = ToldBy::caches, .max = max_demands + max_prefetches + max_walk_loads},
    {.counts = Counts::offcore_1, .told_by = ToldBy::caches, .max = max_demands + max_prefetches + max_walk_loads},
    {.counts = Counts::several},
});

/// Whether the rows are in the order of Counts.
constexpr bool are_in_order() {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].counts != static_cast<Counts>(i)) return false;
  return rows.back().counts == Counts::several;
}
static_assert(are_in_order());

}  // namespace counts_rows

/// How many kinds there are.
inline constexpr unsigned counts_kinds = counts_rows::rows.size();

/// Whether it counts micro-operations that retire, whatever they do.
[[nodiscard]] constexpr bool is_any_retired_uop(Counts counts) {
  return counts == Counts::uops_retired || counts == Counts::slots_retired;
}

/// What is known of a kind of event.
[[nodiscard]] constexpr const CountsDesc& describe(Counts counts) {
  return counts_rows::rows[static_cast<unsigned>(counts)];
}

/// Whether only a model of the pipeline tells it: a source without one delivers nothing, as of an unmodelled event.
[[nodiscard]] constexpr bool only_pipeline_tells(Counts counts) { return describe(counts).told_by == ToldBy::pipeline; }

/// Whether a source tells it only with a model of the pipeline: that model, or caches that it gives the time.
[[nodiscard]] constexpr bool needs_pipeline(Counts counts) {
  return only_pipeline_tells(counts) || describe(counts).told_by == ToldBy::timed_caches;
}

/// How often an event that is the union of these kinds happened in one retirement: its branch, its load, its store and
/// its class count once, whichever of the kinds count them.
[[nodiscard]] constexpr std::uint64_t occurrences(std::span<const Counts> kinds, const Retirement& r) {
  bool branch = false, load = false, store = false, once = false, each_load = false, each_store = false;
  InstructionPattern instructions;
  CacheEvents caches;
  std::uint64_t n = 0;
  for (const Counts kind : kinds) {
    const CountsDesc& desc = describe(kind);
    branch = branch || desc.branches.matches(r.branch);
    load = load || desc.accesses.has_load(r);
    store = store || desc.accesses.has_store(r);
    each_load = each_load || (desc.accesses.each && desc.accesses.loads);
    each_store = each_store || (desc.accesses.each && desc.accesses.stores);
    once = once || desc.accesses.once;
    instructions = instructions | desc.instructions;
    caches = caches | desc.caches;
    if (desc.more != nullptr) n += desc.more(r);
  }
  const std::uint64_t accesses = once ? std::uint64_t{load || store}
                                      : AccessPattern::counted(load, each_load ? r.more_loads : 0) +
                                            AccessPattern::counted(store, each_store ? r.more_stores : 0);
  return n + unsigned{branch} + accesses + instructions.of_class(static_cast<unsigned>(r.kind)) + caches.sum(r.caches);
}

}  // namespace vpmu
