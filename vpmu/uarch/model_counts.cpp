#include <algorithm>

#include "uarch/processor_model.hpp"

/// Which events the model has, and how it counts them from what it saw.
namespace vpmu::uarch {
namespace {

bool counts_mispredictions(Counts counts) { return describe(counts).told_by == ToldBy::prediction; }

/// The TlbResults of such a miss, a bit each.
unsigned results(TlbMiss miss) {
  constexpr auto bit = [](TlbResult result) { return 1U << static_cast<unsigned>(result); };
  switch (miss) {
    case TlbMiss::any: return ~0U;
    case TlbMiss::first: return bit(TlbResult::stlb_hit) | bit(TlbResult::walk);
    case TlbMiss::both: return bit(TlbResult::walk);
  }
  return 0;
}

/// Whether the entry needs caches and TLBs. A record of a store says whether it hit the L1 (rule S3).
bool needs_memory(const PlanEntry& e) {
  const bool stores =
      e.counts == Counts::stores || e.counts == Counts::split_stores || e.counts == Counts::uops_retired;
  const bool fetches = describe(e.counts).told_by == ToldBy::fetch;
  return fetches || (e.precise && stores) || (ProcessorModel::tells(e.counts) && !counts_mispredictions(e.counts));
}

}  // namespace

bool ProcessorModel::tells(Counts counts) {
  const ToldBy by = describe(counts).told_by;
  return by == ToldBy::caches || by == ToldBy::prediction;
}

// The model does not count branches for which the engine has a tally, nor far branches.
bool ProcessorModel::has(Counts counts) {
  const CountsDesc& desc = describe(counts);
  const BranchKinds kinds = desc.branches.kinds;
  return tells(counts) || (desc.tally == Tally::none && !kinds.empty() && !kinds.has(BranchKind::far));
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
  if (!has(counts)) return 0;
  if (counts == Counts::l1d_fills) return hierarchy_.l1d_fills();
  const CountsDesc& desc = describe(counts);
  const AccessPattern& of = desc.accesses;
  std::uint64_t n = counts_[static_cast<unsigned>(counts)];
  if (of.loads) n += loads_.with(of.levels, results(of.tlb));
  if (of.stores) n += stores_.with(of.levels, results(of.tlb));
  if (desc.branches.kinds.empty()) return n;
  for (unsigned kind = 0; kind < branches_.size(); ++kind)
    for (const bool taken : {false, true})
      for (const bool mispredicted : {false, true})
        if (desc.branches.matches(
                {.kind = static_cast<BranchKind>(kind), .taken = taken, .mispredicted = mispredicted}))
          n += branches_[kind][branch_end(taken, mispredicted)];
  return n;
}

}  // namespace vpmu::uarch
