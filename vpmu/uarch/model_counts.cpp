#include <algorithm>
#include <array>

#include "uarch/processor_model.hpp"

/// Which events the model has, and how they follow from what it saw.
namespace vpmu::uarch {
namespace {

bool counts_mispredictions(Counts counts) {
  return counts >= Counts::mispredicts && counts <= Counts::mispredicts_return;
}

bool is_offcore(Counts counts) { return counts == Counts::offcore || counts == Counts::offcore_1; }

constexpr unsigned bit(HitLevel level) { return 1U << static_cast<unsigned>(level); }
constexpr unsigned bit(TlbResult tlb) { return 1U << static_cast<unsigned>(tlb); }

/// An event that is the accesses of retired instructions with one of these outcomes.
struct OfOutcomes {
  Counts counts;
  bool loads, stores;
  unsigned levels, tlbs;
};

constexpr std::array of_outcomes = [] {
  using enum HitLevel;
  using enum TlbResult;
  constexpr unsigned any = ~0U;
  constexpr unsigned other_core = bit(l3_shared) | bit(l3_modified);
  constexpr unsigned any_l3 = bit(l3) | other_core;
  constexpr unsigned not_l2 = any_l3 | bit(dram);
  constexpr unsigned not_l1 = bit(l2) | not_l2;
  constexpr unsigned not_first = bit(stlb_hit) | bit(walk);
  return std::to_array<OfOutcomes>({
      {Counts::l1_hit, true, false, bit(l1), any},
      {Counts::lfb_hit, true, false, bit(lfb), any},
      {Counts::l1_miss, true, false, not_l1, any},
      {Counts::l2_hit, true, false, bit(l2), any},
      {Counts::l2_miss, true, false, not_l2, any},
      {Counts::l3_hit, true, false, any_l3, any},
      {Counts::l3_hit_unshared, true, false, bit(l3), any},
      {Counts::l3_hit_shared, true, false, bit(l3_shared), any},
      {Counts::l3_hit_modified, true, false, bit(l3_modified), any},
      {Counts::l3_hit_other_core, true, false, other_core, any},
      {Counts::l3_miss, true, false, bit(dram), any},
      {Counts::llc_references, true, true, not_l2, any},
      {Counts::llc_misses, true, true, bit(dram), any},
      {Counts::dtlb_miss_loads, true, false, any, not_first},
      {Counts::stlb_miss_loads, true, false, any, bit(walk)},
      {Counts::dtlb_miss_stores, false, true, any, not_first},
      {Counts::stlb_miss_stores, false, true, any, bit(walk)},
  });
}();

/// An event that is branches of these kinds, a bit each.
struct OfBranches {
  Counts counts;
  unsigned kinds;
  bool not_taken, taken;
  bool only_mispredicted{};
};

constexpr std::array of_branches = [] {
  using enum BranchKind;
  constexpr auto bits = [](auto... kinds) { return ((1U << static_cast<unsigned>(kinds)) | ...); };
  return std::to_array<OfBranches>({
      {Counts::branches_taken, ~bits(none, far), false, true},
      {Counts::branches_not_taken, bits(conditional), true, false},
      {Counts::branches_conditional, bits(conditional), true, true},
      {Counts::branches_call, bits(near_rel_call, near_ind_call), false, true},
      {Counts::branches_return, bits(near_ret), false, true},
      {Counts::mispredicts, ~0U, true, true, true},
      {Counts::mispredicts_conditional, bits(conditional), true, true, true},
      {Counts::mispredicts_not_taken, bits(conditional), true, false, true},
      {Counts::mispredicts_taken, ~bits(none, far), false, true, true},
      {Counts::mispredicts_call, bits(near_rel_call, near_ind_call), true, true, true},
      {Counts::mispredicts_return, bits(near_ret), true, true, true},
  });
}();

/// Whether it needs caches and TLBs. A record of a store says whether it hit the L1 (rule S3).
bool needs_memory(const PlanEntry& e) {
  const bool stores =
      e.counts == Counts::stores || e.counts == Counts::split_stores || e.counts == Counts::uops_retired;
  const bool fetches = e.counts == Counts::frontend || e.counts == Counts::itlb_misses;
  return fetches || (e.precise && stores) || (ProcessorModel::tells(e.counts) && !counts_mispredictions(e.counts));
}

}  // namespace

bool ProcessorModel::tells(Counts counts) {
  constexpr std::array others{Counts::load_latency, Counts::l1d_fills, Counts::l1i_misses, Counts::itlb_stlb_hits,
                              Counts::itlb_walks};
  return counts_mispredictions(counts) || is_offcore(counts) || std::ranges::find(others, counts) != others.end() ||
         std::ranges::find(of_outcomes, counts, &OfOutcomes::counts) != of_outcomes.end();
}

bool ProcessorModel::has(Counts counts) {
  return tells(counts) || std::ranges::find(of_branches, counts, &OfBranches::counts) != of_branches.end();
}

// A record of the branch stack says whether the branch was mispredicted.
bool ProcessorModel::is_wanted(const CountPlan& plan) {
  return plan.branches_wanted ||
         std::ranges::any_of(plan.active(), [](const PlanEntry& e) { return needs_memory(e) || has(e.counts); });
}

void ProcessorModel::follow(const CountPlan& plan) {
  sees_memory_ = std::ranges::any_of(plan.active(), needs_memory);
  for (const PlanEntry& e : plan.active())
    if (e.latency_over) latency_over_ = *e.latency_over;
}

std::uint64_t Outcomes::with(unsigned levels, unsigned tlbs) const {
  std::uint64_t n = 0;
  for (unsigned tlb = 0; tlb < of_.size(); ++tlb)
    for (unsigned level = 0; level < hit_level_count; ++level)
      if ((tlbs >> tlb & 1) != 0 && (levels >> level & 1) != 0) n += of_[tlb][level];
  return n;
}

std::uint64_t ProcessorModel::count(Counts counts) const {
  if (counts == Counts::l1d_fills) return hierarchy_.l1d_fills();
  std::uint64_t n = counts_[static_cast<unsigned>(counts)];
  if (const auto* const of = std::ranges::find(of_outcomes, counts, &OfOutcomes::counts); of != of_outcomes.end()) {
    if (of->loads) n += loads_.with(of->levels, of->tlbs);
    if (of->stores) n += stores_.with(of->levels, of->tlbs);
  }
  if (const auto* const of = std::ranges::find(of_branches, counts, &OfBranches::counts); of != of_branches.end())
    for (unsigned kind = 0; kind < branches_.size(); ++kind)
      for (unsigned end = 0; end < branch_ends; ++end) {
        const bool taken = end >= branch_end(true, false), mispredicted = end % 2 != 0;
        if ((of->kinds >> kind & 1) != 0 && (taken ? of->taken : of->not_taken) &&
            (mispredicted || !of->only_mispredicted))
          n += branches_[kind][end];
      }
  return n;
}

std::uint64_t ProcessorModel::most_per_instruction(Counts counts) {
  const auto is_one_of = [counts](auto... each) { return ((counts == each) || ...); };
  // Two lines of code, and two of each page that its load and its store are in.
  if (is_offcore(counts)) return 10;
  if (is_one_of(Counts::l1d_fills)) return 8;
  // Two lines of code, its load and its store.
  if (is_one_of(Counts::llc_references, Counts::llc_misses)) return 4;
  return is_one_of(Counts::l1i_misses, Counts::itlb_stlb_hits, Counts::itlb_walks) ? 2 : 1;
}

}  // namespace vpmu::uarch
