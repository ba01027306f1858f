#include "vpmu/plan.hpp"

#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

// INV with a CMASK that no cycle's count can reach holds in every cycle: the form counts cycles. The documented form is
// CMASK = 10 (SDM 3B table 18-56, note 2), Linux uses 16 (rule P18).
constexpr unsigned every_cycle_cmask = 10;

}  // namespace

CountPlan Pmu::plan() const {
  CountPlan plan;
  plan.fusion_wanted = config_.policies.macro_fusion;
  const CounterSet armed{static_cast<std::uint16_t>(state_.armed)};
  for (const CounterId c : enabled()) {
    PlanEntry& e = plan.entries[plan.size++];
    e.counter = c;
    e.counts = is_countable(c) ? class_of(c).counts : Counts::unmodelled;
    plan.fusion_wanted = plan.fusion_wanted || e.counts == Counts::macro_fused;
    e.usr = counts_at(c, 3);
    e.os = counts_at(c, 0);
    if (c.is_gp()) {
      e.spec = spec_[c.number()];
      e.per_cycle = CycleCondition::is_asked(e.spec);
      e.cycle = cycle_condition(c);
      if (e.spec.inv && e.spec.cmask >= every_cycle_cmask && !e.spec.edge && e.counts != Counts::unmodelled) {
        e.counts = Counts::cycles;
        e.per_cycle = false;
      }
    } else {
      e.spec.usr = e.usr;
      e.spec.os = e.os;
    }
    const bool all_tagged = config_.policies.load_tag_interval <= 1;
    if (e.counts == Counts::load_latency && all_tagged)
      e.latency_over = static_cast<std::uint16_t>(state_.pebs_ld_lat_threshold);
    e.offcore = selected_offcore(e.counts);
    e.distance = (low_bits(desc_.counter_width) - counter_value(c)) + 1;
    e.precise = pebs_enabled(c) && class_of(c).pebs != PebsAbility::no;
    e.armed = armed.has(c) && e.precise;
    e.wants_overflow = interrupt_enabled(c) || pebs_enabled(c);
  }
  plan.branches_stored = stores_branches();
  plan.branches_wanted = records_branches() || plan.branches_stored;
  plan.lbr_filter = lbr_filter();
  return plan;
}

bool Pmu::take_replan() {
  const bool changed = replan_;
  replan_ = false;
  return changed;
}

}  // namespace vpmu
