#include "vpmu/plan.hpp"

#include <algorithm>

#include "vpmu/counts.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {

namespace fix = reg::fixed_ctr_ctrl;

CountPlan Pmu::plan() const {
  CountPlan plan;
  const CounterSet armed{static_cast<std::uint16_t>(state_.armed)};
  for (const CounterId c : enabled()) {
    PlanEntry& e = plan.entries[plan.size++];
    e.counter = c;
    e.counts = is_countable(c) ? class_of(c).counts : Counts::unmodelled;
    e.kinds = class_of(c).kinds;
    e.usr = counts_at(c, 3);
    e.os = counts_at(c, 0);
    if (c.is_gp()) {
      e.spec = spec_[c.number()];
      e.per_cycle = CycleCondition::is_asked(e.spec);
      e.cycle = cycle_condition(c);
      if (counts_every_cycle(c)) {
        e.counts = Counts::cycles;
        e.per_cycle = false;
      }
    } else {
      e.spec.any = fix::ANY::test(fixed_control(c));
      e.spec.usr = e.usr;
      e.spec.os = e.os;
    }
    if (e.counts == Counts::load_latency && tags_all_loads())
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
  // A record without memory fields of its own shows the last tagged load (rule L6).
  plan.last_load_wanted = tags_all_loads() && load_latency_runs();
  plan.prefetchers_off = static_cast<std::uint8_t>(state_.misc_feature_control);
  return plan;
}

bool Pmu::take_replan() {
  const bool changed = replan_;
  replan_ = false;
  return changed;
}

}  // namespace vpmu
