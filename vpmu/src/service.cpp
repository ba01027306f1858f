#include <algorithm>

#include "boundary.hpp"
#include "store_outcome.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {
CounterSet counters(std::uint64_t state_word) { return CounterSet{static_cast<std::uint16_t>(state_word)}; }
}  // namespace

// Whether an armed counter's event triggers the assist (rules P1, P18, P19, L6, S1).
bool Pmu::is_trigger(CounterId c, std::uint64_t events) {
  const EventClass& event = class_of(c);
  if (event.pebs == PebsAbility::no || !is_countable(c)) return false;
  const EventSpec& s = spec_[c.number()];
  const bool any_retirement = CycleCondition::is_asked(s);
  if (!any_retirement && events == 0) return false;
  std::uint64_t& skid = state_.skid_left[c.number()];
  if (skid == 0) return true;
  skid -= std::min(skid, any_retirement ? 1 : events);
  return false;
}

// Events of an armed counter that came without their instruction use up its skid; an event beyond the skid should have
// triggered.
bool Pmu::late_without_instruction(CounterId c, std::uint64_t events) {
  const bool armed = (state_.armed & bit(c.index())) != 0;
  if (!armed || !pebs_enabled(c) || class_of(c).pebs == PebsAbility::no) return false;
  std::uint64_t& skid = state_.skid_left[c.number()];
  const bool late = events > skid;
  skid -= std::min(skid, events);
  return late;
}

// Walks the steps of the boundary in the manual's order; the interrupts are left to request_pmis() (rule Q8).
void Pmu::serve(Boundary& b, const Retirement* r, GuestEnv& env) {
  const ServiceOrder order = service_order(b.due);
  for (const Step& step : order.active()) {
    switch (step.kind) {
      case StepKind::overflow_pmi:
        post_pmi(PmiCause::overflow);
        b.pmi = true;
        break;
      case StepKind::pebs_assist:
        if (r != nullptr) assist(b, *r, env);
        break;
    }
  }
  state_.armed |= (b.newly_armed - b.served).raw();
}

// An overflow PMI waits for its assist, but not for ever: the overflow has triggered it, and the event may not come
// again (rule Q5a). Called for each report of what has retired.
void Pmu::end_waits(Boundary& b) {
  constexpr std::uint64_t max_reports = 512;
  if (state_.pmi_after_assist == 0) return;
  CounterSet over = counters(state_.pmi_after_assist);
  if (++state_.pmi_waited <= max_reports)
    for (const CounterId c : enabled())
      if (pebs_enabled(c) && (state_.armed & bit(c.index())) != 0) over.remove(c);
  post_waiting(b, over);
}

void Pmu::post_waiting(Boundary& b, CounterSet over) {
  if (!over.empty()) {
    state_.pmi_after_assist &= ~std::uint64_t{over.raw()};
    post_pmi(PmiCause::overflow);
    b.pmi = true;
  }
  if (state_.pmi_after_assist == 0) state_.pmi_waited = 0;
}

void Pmu::halt(GuestEnv& env) {
  if (!pmi_waits()) return;
  Boundary b;
  post_waiting(b, counters(state_.pmi_after_assist));
  request_pmis(b, env);
}

void Pmu::request_pmis(const Boundary& b, GuestEnv& env) {
  const unsigned pmis = (b.pmi ? 1U : 0U) + (b.second_pmi ? 1U : 0U);
  statistics_.pmi_requests += pmis;
  for (unsigned i = 0; i < pmis; ++i) env.request_pmi();
}

// One assist for all triggers: record, reload, clear, then threshold, then the overflow interrupts that waited (rules
// P6, P12, F5, Q4, Q5).
void Pmu::assist(Boundary& b, const Retirement& r, GuestEnv& env) {
  const CounterSet triggers = b.due.triggered;
  CounterSet served =
      triggers | (counters(state_.overflowed) & counters(state_.pebs_enable & low_bits(desc_.pebs_counters)));
  const CounterSet waiting = counters(state_.pmi_after_assist) & served;
  replan_ = true;

  const StoreOutcome stored = store_record(triggers, served, compose(triggers, r), env);
  if (!stored.ok) {
    // Rule F4: the counters are not cleared or reloaded; they are disarmed and run on.
    served = triggers;
    for (const CounterId c : triggers) state_.armed &= ~bit(c.index());
  } else {
    for (const CounterId c : served) {
      set_counter(c, stored.area.counter_reset[c.number()]);  // rule P17
      state_.global_status &= ~bit(c.global_bit());
      clear_arming(c);
    }
    if (stored.threshold_reached) {
      state_.global_status |= reg::global_status::OVF_DSBuffer::mask;
      post_pmi(PmiCause::threshold);
    }
  }
  // Rule F2: a sign in the status alone, without an interrupt.
  if (stored.full && desc_.features.signals_full_buffer) state_.global_status |= reg::global_status::OVF_DSBuffer::mask;
  b.served = served;
  const CounterSet after = waiting & served;
  if (!after.empty()) post_pmi(PmiCause::overflow);
  state_.pmi_after_assist &= ~std::uint64_t{after.raw()};
  // Threshold and overflow of one counter are two interrupts; anything else at this boundary joins (rules Q3, Q5).
  b.second_pmi = stored.threshold_reached && !after.empty();
  b.pmi = b.pmi || stored.threshold_reached || !after.empty();
}

}  // namespace vpmu
