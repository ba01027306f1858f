#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "vpmu/event.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu {

/// A set of branch kinds.
class BranchKinds {
 public:
  /// None.
  constexpr BranchKinds() = default;
  /// These, and no others.
  template <class... Kinds>
  static constexpr BranchKinds of(Kinds... kinds) {
    BranchKinds set;
    ((set.bits_ = static_cast<std::uint8_t>(set.bits_ | (1U << static_cast<unsigned>(kinds)))), ...);
    return set;
  }
  /// Whether the kind is one of them.
  [[nodiscard]] constexpr bool has(BranchKind kind) const { return ((bits_ >> static_cast<unsigned>(kind)) & 1U) != 0; }
  /// Whether there is none.
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// Adds the kinds of another set.
  constexpr BranchKinds& operator|=(BranchKinds other) {
    bits_ = static_cast<std::uint8_t>(bits_ | other.bits_);
    return *this;
  }

 private:
  std::uint8_t bits_{};
};

/// The branches that an event counts; `kinds` is empty for an event that counts no branches.
struct BranchPattern {
  BranchKinds kinds{};
  bool taken{true}, not_taken{true};  ///< Which way they went.
  bool only_mispredicted{};
  /// Whether the event counts this branch.
  [[nodiscard]] constexpr bool matches(const BranchOutcome& b) const {
    return kinds.has(b.kind) && (b.taken ? taken : not_taken) && (b.mispredicted || !only_mispredicted);
  }
};

/// A set of hit levels, a bit each: bit 0 is HitLevel::unknown.
using HitLevels = std::uint16_t;
/// The set of these levels.
template <class... Levels>
constexpr HitLevels hit_levels(Levels... levels) {
  return static_cast<HitLevels>(((1U << static_cast<unsigned>(levels)) | ...));
}

/// Which TLBs an access must have missed to count.
enum class TlbMiss : std::uint8_t {
  any,    ///< No condition.
  first,  ///< The first level TLB.
  both,   ///< The second level too.
};

/// The loads and stores that an event counts; both flags are false for an event that counts no accesses.
struct AccessPattern {
  bool loads{}, stores{};
  HitLevels levels{static_cast<HitLevels>(~0U)};
  TlbMiss tlb{};
  bool only_locked{}, only_split{};
  bool once{};  ///< An instruction with a load and a store counts once.
  /// Whether the event counts this access.
  [[nodiscard]] constexpr bool matches(const MemAccess& a) const {
    const bool missed = tlb == TlbMiss::any || (tlb == TlbMiss::first ? a.dtlb_miss : a.stlb_miss);
    return missed && (levels >> static_cast<unsigned>(a.level) & 1) != 0 && (a.locked || !only_locked) &&
           (a.split || !only_split);
  }
  /// How many accesses of one instruction the event counts: 0 to 2.
  [[nodiscard]] constexpr unsigned of(const Retirement& r) const {
    const bool load = loads && r.has_load && matches(r.load);
    const bool store = stores && r.has_store && matches(r.store);
    return once ? unsigned{load || store} : unsigned{load} + unsigned{store};
  }
};

/// What a source must observe to count a kind of event.
enum class ToldBy : std::uint8_t {
  nothing,      ///< Nothing: no source knows it.
  clock,        ///< A clock, while the processor is not halted.
  instruction,  ///< The instruction itself, and where it went: exact.
  slots,        ///< The number and kind of an instruction's micro-operations.
  target,       ///< Whether the address that it reads is RAM.
  caches,       ///< Caches and TLBs.
  fetch,        ///< Caches and TLBs, for the fetch of the instruction itself.
  prediction,   ///< The branch predictor.
  fusion,       ///< The decoder.
};

/// Which of an engine's own totals gives the count, for instructions that ran in bulk.
enum class Tally : std::uint8_t { none, zero, instructions, branches, near_branches, loads, stores };

/// Everything about one kind of event. A new kind needs an enumerator in Counts and a row here.
struct CountsDesc {
  Counts counts;
  ToldBy told_by{};
  Tally tally{};
  BranchPattern branches{};
  AccessPattern accesses{};
  /// What a retired instruction adds to the count besides its branch and its accesses; null: nothing.
  std::uint64_t (*more)(const Retirement&){};
  /// Events per 1000 cycles of an imagined program, for sources that do not look at the guest's code.
  std::uint32_t usual{};
  /// The most events of one instruction when the engine's models tell them; for off-core requests, of one that is not a
  /// string instruction.
  std::uint8_t most{1};

  /// How often the event happened in one retirement. 0 for load_latency, frontend and offcore: their MSR selects what
  /// counts, and it is not known here.
  [[nodiscard]] constexpr std::uint64_t of(const Retirement& r) const {
    return unsigned{branches.matches(r.branch)} + accesses.of(r) + (more != nullptr ? more(r) : 0);
  }
};

namespace counts_rows {

/// Whether an instruction is of a class.
template <InstructionClass Kind>
constexpr std::uint64_t is(const Retirement& r) {
  return r.kind == Kind ? 1 : 0;
}

/// Conditional branches.
inline constexpr auto conditional = BranchKinds::of(BranchKind::conditional);
/// Near calls.
inline constexpr auto calls = BranchKinds::of(BranchKind::near_rel_call, BranchKind::near_ind_call);
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
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return r.cycles; }},
    {.counts = Counts::ref_cycles,
     .told_by = ToldBy::clock,
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return r.ref_cycles; }},
    {.counts = Counts::bus_cycles,
     .told_by = ToldBy::clock,
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return std::uint64_t{r.bus_cycles}; }},
    {.counts = Counts::instructions,
     .told_by = ToldBy::instruction,
     .tally = Tally::instructions,
     .more = [](const Retirement&) { return std::uint64_t{1}; },
     .usual = 1000},
    {.counts = Counts::uops_retired,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .usual = 1100},
    {.counts = Counts::uops_issued,
     .told_by = ToldBy::slots,
     .tally = Tally::instructions,
     .more = [](const Retirement& r) { return std::uint64_t{r.uops}; },
     .usual = 1200},
    {.counts = Counts::branches,
     .told_by = ToldBy::instruction,
     .tally = Tally::branches,
     .branches = {.kinds = all_branches},
     .usual = 200},
    {.counts = Counts::branches_taken,
     .told_by = ToldBy::instruction,
     .branches = {.kinds = near, .not_taken = false},
     .usual = 120},
    {.counts = Counts::branches_not_taken,
     .told_by = ToldBy::instruction,
     .branches = {.kinds = conditional, .taken = false},
     .usual = 80},
    {.counts = Counts::branches_conditional,
     .told_by = ToldBy::instruction,
     .branches = {.kinds = conditional},
     .usual = 150},
    {.counts = Counts::branches_call, .told_by = ToldBy::instruction, .branches = {.kinds = calls}, .usual = 15},
    {.counts = Counts::branches_return, .told_by = ToldBy::instruction, .branches = {.kinds = returns}, .usual = 15},
    {.counts = Counts::branches_far, .told_by = ToldBy::instruction, .branches = {.kinds = far}, .usual = 1},
    {.counts = Counts::branches_near,
     .told_by = ToldBy::instruction,
     .tally = Tally::near_branches,
     .branches = {.kinds = near},
     .usual = 199},
    {.counts = Counts::mispredicts,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = all_branches, .only_mispredicted = true},
     .usual = 4},
    {.counts = Counts::mispredicts_conditional,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = conditional, .only_mispredicted = true},
     .usual = 3},
    {.counts = Counts::mispredicts_taken,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = near, .not_taken = false, .only_mispredicted = true},
     .usual = 2},
    {.counts = Counts::mispredicts_not_taken,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = conditional, .taken = false, .only_mispredicted = true},
     .usual = 1},
    {.counts = Counts::mispredicts_call,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = calls, .only_mispredicted = true},
     .usual = 1},
    {.counts = Counts::mispredicts_return,
     .told_by = ToldBy::prediction,
     .branches = {.kinds = returns, .only_mispredicted = true},
     .usual = 1},
    {.counts = Counts::loads,
     .told_by = ToldBy::instruction,
     .tally = Tally::loads,
     .accesses = {.loads = true},
     .usual = 250},
    {.counts = Counts::stores,
     .told_by = ToldBy::instruction,
     .tally = Tally::stores,
     .accesses = {.stores = true},
     .usual = 120},
    {.counts = Counts::memory_instructions,
     .told_by = ToldBy::instruction,
     .accesses = {.loads = true, .stores = true, .once = true},
     .usual = 360},
    {.counts = Counts::locked_loads,
     .told_by = ToldBy::instruction,
     .accesses = {.loads = true, .only_locked = true},
     .usual = 1},
    {.counts = Counts::uncached_loads,
     .told_by = ToldBy::target,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::uncached)}},
    {.counts = Counts::split_loads,
     .told_by = ToldBy::instruction,
     .accesses = {.loads = true, .only_split = true},
     .usual = 1},
    {.counts = Counts::split_stores,
     .told_by = ToldBy::instruction,
     .accesses = {.stores = true, .only_split = true},
     .usual = 1},
    {.counts = Counts::dtlb_miss_loads,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .tlb = TlbMiss::first},
     .usual = 2},
    {.counts = Counts::dtlb_miss_stores,
     .told_by = ToldBy::caches,
     .accesses = {.stores = true, .tlb = TlbMiss::first},
     .usual = 2},
    {.counts = Counts::stlb_miss_loads,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .tlb = TlbMiss::both},
     .usual = 1},
    {.counts = Counts::stlb_miss_stores,
     .told_by = ToldBy::caches,
     .accesses = {.stores = true, .tlb = TlbMiss::both},
     .usual = 1},
    {.counts = Counts::l1_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l1)},
     .usual = 240},
    {.counts = Counts::l1_miss, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = below_l1}, .usual = 8},
    {.counts = Counts::lfb_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::lfb)},
     .usual = 2},
    {.counts = Counts::l2_hit,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l2)},
     .usual = 5},
    {.counts = Counts::l2_miss, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = below_l2}, .usual = 3},
    {.counts = Counts::l3_hit, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = any_l3}, .usual = 2},
    {.counts = Counts::l3_hit_unshared,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3)},
     .usual = 2},
    {.counts = Counts::l3_hit_shared,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3_shared)}},
    {.counts = Counts::l3_hit_modified,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::l3_modified)}},
    {.counts = Counts::l3_hit_other_core, .told_by = ToldBy::caches, .accesses = {.loads = true, .levels = other_core}},
    {.counts = Counts::l3_miss,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .levels = hit_levels(HitLevel::dram)},
     .usual = 1},
    // Data and code, SDM 3B 18.2.1.2. At most for one instruction: two lines of code, its load and its store.
    {.counts = Counts::llc_references,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .stores = true, .levels = below_l2},
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.llc_references}; },
     .usual = 4,
     .most = 4},
    {.counts = Counts::llc_misses,
     .told_by = ToldBy::caches,
     .accesses = {.loads = true, .stores = true, .levels = hit_levels(HitLevel::dram)},
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.llc_misses}; },
     .usual = 1,
     .most = 4},
    {.counts = Counts::l1d_fills,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return std::uint64_t{r.l1d_fills}; },
     .usual = 12,
     .most = 8},
    {.counts = Counts::l1i_misses,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.l1i_misses}; },
     .usual = 5,
     .most = 2},
    {.counts = Counts::itlb_stlb_hits,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_stlb_hits}; },
     .usual = 1,
     .most = 2},
    {.counts = Counts::itlb_walks,
     .told_by = ToldBy::caches,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_walks}; },
     .usual = 1,
     .most = 2},
    {.counts = Counts::itlb_misses,
     .told_by = ToldBy::fetch,
     .more = [](const Retirement& r) { return std::uint64_t{r.frontend.itlb_miss}; }},
    {.counts = Counts::nops, .told_by = ToldBy::instruction, .more = is<InstructionClass::nop>},
    {.counts = Counts::x87_operations, .told_by = ToldBy::slots, .more = is<InstructionClass::x87_operation>},
    {.counts = Counts::mmx, .told_by = ToldBy::instruction, .more = is<InstructionClass::mmx>},
    {.counts = Counts::sse_packed_single, .told_by = ToldBy::slots, .more = is<InstructionClass::sse_packed_single>},
    {.counts = Counts::sse_scalar_single, .told_by = ToldBy::slots, .more = is<InstructionClass::sse_scalar_single>},
    {.counts = Counts::sse_packed_double, .told_by = ToldBy::slots, .more = is<InstructionClass::sse_packed_double>},
    {.counts = Counts::sse_scalar_double, .told_by = ToldBy::slots, .more = is<InstructionClass::sse_scalar_double>},
    {.counts = Counts::sse_integer, .told_by = ToldBy::slots, .more = is<InstructionClass::sse_integer>},
    {.counts = Counts::macro_fused,
     .told_by = ToldBy::fusion,
     .more = [](const Retirement& r) { return std::uint64_t{r.macro_fused}; }},
    {.counts = Counts::never, .tally = Tally::zero},
    // Tagged loads; a source that knows no latency lets all of them pass the threshold.
    {.counts = Counts::load_latency, .told_by = ToldBy::caches, .usual = 10},
    {.counts = Counts::frontend, .told_by = ToldBy::fetch},
    // Two lines of code, and two lines of each page that its load and its store touch.
    {.counts = Counts::offcore, .told_by = ToldBy::caches, .most = 10},
    {.counts = Counts::offcore_1, .told_by = ToldBy::caches, .most = 10},
});

/// Whether the rows are in the order of Counts.
constexpr bool are_in_order() {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].counts != static_cast<Counts>(i)) return false;
  return rows.back().counts == Counts::offcore_1;
}
static_assert(are_in_order());

}  // namespace counts_rows

/// How many kinds there are.
inline constexpr unsigned counts_kinds = counts_rows::rows.size();

/// What is known of a kind of event.
[[nodiscard]] constexpr const CountsDesc& describe(Counts counts) {
  return counts_rows::rows[static_cast<unsigned>(counts)];
}

/// Whether one of the off-core response MSRs selects what the kind counts.
[[nodiscard]] constexpr bool is_offcore(Counts counts) {
  return counts == Counts::offcore || counts == Counts::offcore_1;
}

}  // namespace vpmu
