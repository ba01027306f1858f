#include "vpmu/snapshot.hpp"

#include "msr_table.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {

PmuSnapshot Pmu::snapshot() const {
  return {.generation = static_cast<std::uint64_t>(desc_.generation), .gp_counters = gp_counters_, .state = state_};
}

// A snapshot may come from anywhere: every register must hold a value that a guest could have written to this PMU, and
// the state beside the registers must be one that the PMU could have reached.
bool Pmu::could_be_mine(const PmuState& s) const {
  Pmu candidate{*this};
  candidate.state_ = s;
  for (const MsrRow& row : MsrTable::rows()) {
    if (!row.exists(desc_) || row.write == nullptr) continue;
    for (unsigned i = 0; i < row.present(candidate); ++i)
      if (!MsrTable::legal(row, candidate, row.read(candidate, i))) return false;
  }
  for (unsigned i = gp_counters_; i < max_gp_counters; ++i)
    if ((s.perfevtsel[i] | s.pmc[i]) != 0) return false;
  for (unsigned n = desc_.fixed_counters; n < max_fixed_counters; ++n)
    if (s.fixed_ctr[n] != 0) return false;
  if (!MsrTable::has_global_registers(*this) && s.global_ctrl != low_bits(gp_counters_)) return false;
  const auto only = [](std::uint64_t word, std::uint64_t allowed) { return (word & ~allowed) == 0; };
  // WRMSR to IA32_PMCi accepts any value, but the counter keeps only its own width.
  for (const std::uint64_t counter : s.pmc)
    if (!only(counter, low_bits(desc_.counter_width))) return false;
  return only(s.misc_enable ^ state_.misc_enable, reg::misc_enable::writable) &&
         only(s.global_status, MsrTable::global_status_bits(candidate)) &&
         only(s.armed | s.overflowed | s.pmi_after_assist, low_bits(desc_.pebs_counters)) &&
         only(s.condition, low_bits(gp_counters_)) && s.load_tag_random != 0;
}

RestoreStatus Pmu::restore(const PmuSnapshot& from) {
  if (from.magic != PmuSnapshot::magic_value) return RestoreStatus::wrong_magic;
  if (from.version != PmuSnapshot::current_version) return RestoreStatus::wrong_version;
  if (from.generation != static_cast<std::uint64_t>(desc_.generation) || from.gp_counters != gp_counters_)
    return RestoreStatus::wrong_generation;
  if (!could_be_mine(from.state)) return RestoreStatus::illegal_value;

  for (unsigned i = 0; i < gp_counters_; ++i) {
    state_.perfevtsel[i] = from.state.perfevtsel[i];
    decode_event(i);
  }
  state_ = from.state;  // after decode_event(), which forgets the open cycle
  statistics_ = {};
  replan_ = true;
  return RestoreStatus::ok;
}

}  // namespace vpmu
