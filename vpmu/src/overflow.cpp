#include "boundary.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {
namespace st = reg::global_status;
namespace dbg = reg::debugctl;
}  // namespace

// Adds n events; true when the counter passed from its highest value through 0. It keeps the remainder (rule O1).
bool Pmu::add(CounterId c, std::uint64_t n) {
  const std::uint64_t value = counter_value(c);
  const std::uint64_t distance = (low_bits(desc_.counter_width) - value) + 1;
  set_counter(c, value + n);
  return n >= distance;
}

bool Pmu::interrupt_enabled(CounterId c) const {
  return c.is_gp() ? reg::perfevtsel::INT::test(state_.perfevtsel[c.number()])
                   : reg::fixed_ctr_ctrl::PMI::test(fixed_control(c));
}

// Rule O5: general-purpose counters 0 to 3 only.
bool Pmu::pebs_enabled(CounterId c) const {
  return c.is_gp() && c.number() < desc_.pebs_counters && (state_.pebs_enable & bit(c.number())) != 0;
}

// Rule D1: INST_RETIRED.PREC_DIST on PMC1, without EDGE, INV, CMASK and ANY.
bool Pmu::is_pdir(CounterId c) const {
  if (!desc_.features.pdir || c != CounterId::gp(1) || !pebs_enabled(c)) return false;
  const EventSpec& s = spec_[1];
  return s.code == 0xC0 && s.umask == 0x01 && s.cmask == 0 && !s.edge && !s.inv && !s.any;
}

// Rules O2 to O4, P19, Q5.
void Pmu::overflow(CounterId c, Boundary& b) {
  ++statistics_.overflows;
  replan_ = true;
  state_.global_status |= bit(c.global_bit());
  const bool pebs = pebs_enabled(c);
  if (pebs) {
    state_.overflowed |= bit(c.index());
    b.newly_armed.add(c);
    if (config_.policies.skid_events != 0) state_.skid_left[c.number()] = config_.policies.skid_events;
  }
  trace(Overflowed{.counter = c, .armed_pebs = pebs});
  if (!interrupt_enabled(c)) return;
  if (pebs && class_of(c).pebs != PebsAbility::no)
    state_.pmi_after_assist |= bit(c.index());
  else
    b.due.overflow_pmi.add(c);
}

// SDM 3B 17.4.7, rules Z1 to Z4. Acts before the interrupt is delivered, whatever LVTPC says (Z6).
void Pmu::freeze() {
  const bool counters = dbg::FREEZE_PERFMON_ON_PMI::test(state_.debugctl);
  const bool lbrs = dbg::FREEZE_LBRS_ON_PMI::test(state_.debugctl);
  switch (desc_.freeze) {
    case FreezeKind::legacy:
      if (counters) state_.global_ctrl = 0;
      if (lbrs) state_.debugctl &= ~dbg::LBR::mask;
      break;
    case FreezeKind::streamlined:
      if (counters) state_.global_status |= st::CTR_FRZ::mask;
      if (lbrs) state_.global_status |= st::LBR_FRZ::mask;
      break;
  }
  replan_ = replan_ || counters || lbrs;
}

void Pmu::post_pmi(PmiCause cause) {
  freeze();
  trace(PmiRequested{.cause = cause});
}

// Rule P20; the status bit stays (O6), and so does an overflow PMI that waits for the assist: end_waits() posts it.
void Pmu::clear_arming(CounterId c) {
  const std::uint64_t keep = ~bit(c.index());
  state_.armed &= keep;
  state_.overflowed &= keep;
  state_.skid_left[c.number()] = 0;
}

}  // namespace vpmu
