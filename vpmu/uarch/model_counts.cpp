#include <algorithm>

#include "uarch/processor_model.hpp"

/// Which events the model has, and how it counts them from what it saw.
namespace vpmu::uarch {
namespace {

bool counts_mispredictions(Counts counts) { return describe(counts).told_by == ToldBy::prediction; }

/// Whether the entry needs caches and TLBs. A record of a store says whether it hit the L1 (rule S3).
bool needs_memory(const PlanEntry& e) {
  return std::ranges::any_of(e.what(), [&e](Counts counts) {
    const bool stores = describe(counts).accesses.stores || is_any_retired_uop(counts);
    const bool fetches = describe(counts).told_by == ToldBy::fetch;
    return fetches || (e.precise && stores) || (ProcessorModel::tells(counts) && !counts_mispredictions(counts));
  });
}

}  // namespace

bool ProcessorModel::tells(Counts counts) {
  const ToldBy by = describe(counts).told_by;
  return by == ToldBy::caches || by == ToldBy::timed_caches || by == ToldBy::prediction;
}

// The model does not count branches for which the engine has a tally, nor far branches.
bool ProcessorModel::has(Counts counts) {
  const CountsDesc& desc = describe(counts);
  const BranchKinds kinds = desc.branches.kinds;
  return tells(counts) || (desc.tally == Tally::none && !kinds.empty() && !kinds.has(BranchKind::far));
}

bool ProcessorModel::has(const PlanEntry& entry) {
  return std::ranges::all_of(entry.what(), [](Counts counts) { return has(counts); });
}

// A record of the branch stack says whether the branch was mispredicted.
bool ProcessorModel::is_wanted(const CountPlan& plan) {
  return plan.branches_wanted || plan.caches_wanted ||
         std::ranges::any_of(plan.active(), [](const PlanEntry& e) { return needs_memory(e) || has(e); });
}

void ProcessorModel::follow(const CountPlan& plan) {
  sees_memory_ = clock_ != nullptr || plan.caches_wanted || std::ranges::any_of(plan.active(), needs_memory);
  hierarchy_.turn_off(plan.prefetchers_off);
  keeps_last_load_ = plan.last_load_wanted;
  if (!keeps_last_load_) kept_load_.reset();
  for (const PlanEntry& e : plan.active())
    if (e.latency_over) latency_over_ = *e.latency_over;
}

void ProcessorModel::follow_beside(const CountPlan& plan) {
  sees_memory_ = sees_memory_ || std::ranges::any_of(plan.active(), needs_memory);
}

std::uint64_t ProcessorModel::count_alone(Counts counts) const {
  const auto own = [this](Counts kind) { return counts_[static_cast<unsigned>(kind)]; };
  if (counts == Counts::l1d_fills) return hierarchy_.l1d_fills(thread_);
  if (counts == Counts::itlb_any_misses) return own(Counts::itlb_stlb_hits) + own(Counts::itlb_walks);
  if (counts == Counts::l1i_reads) return own(Counts::l1i_hits) + own(Counts::l1i_misses);
  return own(counts);
}

// What several kinds count is counted once.
std::uint64_t ProcessorModel::count_union(std::span<const Counts> kinds) const {
  std::uint64_t n = 0;
  CacheEvents caches;
  for (const Counts kind : kinds) {
    n += count_alone(kind);
    caches |= describe(kind).caches;
  }
  n += caches.sum(hierarchy_.cache_events(thread_));
  const auto any_access = [kinds](bool AccessPattern::* which, HitLevel level, TlbResult tlb, PageSize page) {
    return std::ranges::any_of(kinds, [&](Counts kind) {
      const AccessPattern& of = describe(kind).accesses;
      return of.*which && (of.levels >> static_cast<unsigned>(level) & 1) != 0 &&
             (of.pages >> static_cast<unsigned>(page) & 1) != 0 &&
             is_counted(of.tlb, tlb != TlbResult::hit, tlb == TlbResult::walk);
    });
  };
  const bool accesses = std::ranges::any_of(
      kinds, [](Counts kind) { return describe(kind).accesses.loads || describe(kind).accesses.stores; });
  for (const TlbResult tlb : {TlbResult::hit, TlbResult::stlb_hit, TlbResult::walk})
    for (const PageSize page : {PageSize::small, PageSize::large, PageSize::huge})
      for (unsigned l = 0; accesses && l < hit_level_count; ++l) {
        const auto level = static_cast<HitLevel>(l);
        if (any_access(&AccessPattern::loads, level, tlb, page)) n += loads_.of(level, tlb, page);
        if (any_access(&AccessPattern::stores, level, tlb, page)) n += stores_.of(level, tlb, page);
      }
  const bool branches = std::ranges::any_of(kinds, [](Counts kind) { return !describe(kind).branches.kinds.empty(); });
  for (unsigned kind = 0; branches && kind < branches_.size(); ++kind)
    for (const bool taken : {false, true})
      for (const bool mispredicted : {false, true}) {
        const BranchOutcome branch{.kind = static_cast<BranchKind>(kind), .taken = taken, .mispredicted = mispredicted};
        if (std::ranges::any_of(kinds, [&branch](Counts c) { return describe(c).branches.matches(branch); }))
          n += branches_[kind][branch_end(taken, mispredicted)];
      }
  return n;
}

std::uint64_t ProcessorModel::count(const PlanEntry& entry) const {
  if (is_offcore(entry.counts)) return offcore_sum(hierarchy_.offcore(thread_), entry.offcore);
  return has(entry) ? count_union(entry.what()) : 0;
}

std::uint64_t ProcessorModel::count(Counts counts) const {
  return has(counts) ? count_union(std::span{&counts, 1}) : 0;
}

}  // namespace vpmu::uarch
