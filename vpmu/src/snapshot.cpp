#include "vpmu/snapshot.hpp"

#include "msr_table.hpp"
#include "vpmu/pmu.hpp"

namespace vpmu {

PmuSnapshot Pmu::snapshot() const {
  return {.generation = static_cast<std::uint64_t>(desc_.generation), .gp_counters = gp_counters_, .state = state_};
}

// A snapshot may come from anywhere: every register must hold what WRMSR would accept.
RestoreStatus Pmu::restore(const PmuSnapshot& from) {
  if (from.magic != PmuSnapshot::magic_value) return RestoreStatus::wrong_magic;
  if (from.version != PmuSnapshot::current_version) return RestoreStatus::wrong_version;
  if (from.generation != static_cast<std::uint64_t>(desc_.generation) || from.gp_counters != gp_counters_)
    return RestoreStatus::wrong_generation;

  Pmu candidate{*this};
  candidate.state_ = from.state;
  for (const MsrRow& row : MsrTable::rows()) {
    if (!row.exists(desc_) || row.write == nullptr) continue;
    for (unsigned i = 0; i < row.present(candidate); ++i)
      if (!MsrTable::legal(row, candidate, row.read(candidate, i))) return RestoreStatus::illegal_value;
  }
  const std::uint64_t pebs_counters = low_bits(desc_.pebs_counters);
  const PmuState& s = from.state;
  if ((s.global_status & ~MsrTable::global_status_bits(candidate)) != 0) return RestoreStatus::illegal_value;
  if (((s.armed | s.overflowed | s.pmi_after_assist | s.fused_trigger) & ~pebs_counters) != 0) return RestoreStatus::illegal_value;

  state_ = from.state;
  for (unsigned i = 0; i < gp_counters_; ++i) {
    const std::uint64_t open = state_.open_cycle[i];
    const std::uint64_t condition = state_.condition;
    decode_event(i);  // forgets the open cycle
    state_.open_cycle[i] = open;
    state_.condition = condition;
  }
  replan_ = true;
  return RestoreStatus::ok;
}

}  // namespace vpmu
