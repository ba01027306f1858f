#include <cstdint>

#include "vpmu/counts.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

namespace sel = reg::perfevtsel;
namespace fix = reg::fixed_ctr_ctrl;

/// Whether the event happens once in every core cycle.
bool is_every_cycle(Counts counts) { return counts == Counts::cycles || counts == Counts::ref_cycles; }

/// Whether the totals of a pipeline give the count, or nothing does, and not this retirement.
bool is_in_totals(Counts counts, const Retirement& r) {
  const CountsDesc& desc = describe(counts);
  return desc.told_by == ToldBy::pipeline || (r.has_pipeline && !desc.pipeline.of.empty()) ||
         (!r.has_pipeline && desc.told_by == ToldBy::timed_caches);
}

}  // namespace

// Rules C1 to C3; CTR_FRZ stops both kinds.
CounterSet Pmu::enabled() const {
  CounterSet on;
  if (reg::global_status::CTR_FRZ::test(state_.global_status)) return on;
  for (const CounterId c : selected())
    if ((state_.global_ctrl & bit(c.global_bit())) != 0) on.add(c);
  return on;
}

CounterSet Pmu::selected() const {
  CounterSet set;
  for (unsigned i = 0; i < gp_counters_; ++i)
    if (sel::EN::test(state_.perfevtsel[i])) set.add(CounterId::gp(i));
  for (unsigned n = 0; n < desc_.fixed_counters; ++n) {
    const CounterId c = CounterId::fixed(n);
    if ((fixed_control(c) & (fix::EN_OS::mask | fix::EN_USR::mask)) != 0) set.add(c);
  }
  return set;
}

// The CPL filter: OS counts at CPL 0, USR at 1 to 3 (rules C1, C2).
bool Pmu::counts_at(CounterId c, unsigned cpl) const {
  if (c.is_gp()) return cpl == 0 ? spec_[c.number()].os : spec_[c.number()].usr;
  return cpl == 0 ? fix::EN_OS::test(fixed_control(c)) : fix::EN_USR::test(fixed_control(c));
}

std::uint64_t Pmu::fixed_control(CounterId c) const {
  return (state_.fixed_ctr_ctrl >> (c.number() * fix::bits_per_counter)) & low_bits(fix::bits_per_counter);
}

std::uint64_t Pmu::counter_value(CounterId c) const {
  return c.is_gp() ? state_.pmc[c.number()] : state_.fixed_ctr[c.number()];
}

void Pmu::set_counter(CounterId c, std::uint64_t value) {
  (c.is_gp() ? state_.pmc[c.number()] : state_.fixed_ctr[c.number()]) = value & low_bits(desc_.counter_width);
}

const EventClass& Pmu::class_of(CounterId c) const { return class_[c.index()]; }

void Pmu::decode_event(unsigned gp) {
  const std::uint64_t raw = state_.perfevtsel[gp];
  EventSpec& s = spec_[gp];
  s = {.code = static_cast<std::uint8_t>(sel::EVENT::get(raw)),
       .umask = static_cast<std::uint8_t>(sel::UMASK::get(raw)),
       .cmask = static_cast<std::uint8_t>(sel::CMASK::get(raw)),
       .usr = sel::USR::test(raw),
       .os = sel::OS::test(raw),
       .edge = sel::E::test(raw),
       .any = sel::ANY::test(raw),
       .inv = sel::INV::test(raw),
       .in_tx = sel::IN_TX::test(raw),
       .in_txcp = sel::IN_TXCP::test(raw)};
  class_[gp] = classify(desc_, s);
  state_.open_cycle[gp] = 0;
  state_.condition &= ~bit(gp);
}

// Both enable bits, the plain form of the event, and a counter that may run it (rules L2, L10, L12).
bool Pmu::load_latency_enabled(CounterId c) const {
  if (!c.is_gp() || class_of(c).counts != Counts::load_latency) return false;
  const EventSpec& s = spec_[c.number()];
  const std::uint64_t both = bit(c.number()) | bit(reg::pebs_enable::ll_shift + c.number());
  return (state_.pebs_enable & both) == both && s.cmask == 0 && !s.inv &&
         (desc_.load_latency_counters & bit(c.number())) != 0;
}

bool Pmu::is_precise_store(CounterId c) const {
  if (!desc_.features.precise_store || !c.is_gp()) return false;
  const EventSpec& s = spec_[c.number()];
  return s.code == desc_.precise_store_code && s.umask == desc_.precise_store_umask;
}

// Rules S1, S2: PMC3 alone, with both bits.
bool Pmu::precise_store_enabled(CounterId c) const {
  constexpr unsigned the_counter = 3;
  constexpr std::uint64_t both = bit(the_counter) | reg::pebs_enable::PS_EN::mask;
  return is_precise_store(c) && c.number() == the_counter && (state_.pebs_enable & both) == both;
}

bool Pmu::load_latency_runs() const {
  for (const CounterId c : enabled())
    if (load_latency_enabled(c)) return true;
  return false;
}

// Tagging belongs to the facility, not to a counter: one draw per retired load while some counter uses it (rules L4,
// L11).
bool Pmu::take_load_tag(const Retirement& r) {
  if (!r.has_load || is_prefetch(r.kind) || !load_latency_runs()) return false;
  if (tags_all_loads()) return true;
  const std::uint64_t interval = config_.policies.load_tag_interval;
  if (state_.load_tag_countdown == 0) {
    std::uint64_t& x = state_.load_tag_random;  // xorshift64
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    state_.load_tag_countdown = 1 + x % (2 * interval - 1);
  }
  return --state_.load_tag_countdown == 0;
}

CycleCondition Pmu::cycle_condition(CounterId c) const {
  return {.open = state_.open_cycle[c.number()], .held = (state_.condition & bit(c.index())) != 0};
}

void Pmu::set_cycle_condition(CounterId c, const CycleCondition& is) {
  state_.open_cycle[c.number()] = is.open;
  state_.condition = (state_.condition & ~bit(c.index())) | (is.held ? bit(c.index()) : 0);
}

// SDM 3B tables 18-58 and 18-59.
bool Pmu::selected_frontend(const FrontendOutcome& f) const {
  namespace fe = reg::pebs_frontend;
  const std::uint64_t m = state_.pebs_frontend;
  const std::uint64_t length = fe::IDQ_Bubble_Length::get(m);
  const std::uint64_t width = fe::IDQ_Bubble_Width::get(m);
  switch (fe::EVTSEL_LOW::get(m) | (fe::EVTSEL_HIGH::get(m) << 4)) {
    case 0x01:  // any miss of the decoded micro-op cache; 11H: one that delays. Here all do.
    case 0x11: return f.dsb_miss;
    case 0x12: return f.l1i_miss;
    case 0x13: return f.l2_miss;
    case 0x14: return f.itlb_miss;
    case 0x15: return f.stlb_miss;
    case 0x06: return length > 0 && f.bubble_cycles >= length && f.bubble_slots >= width;
    default: return false;
  }
}

OffcoreFilter Pmu::selected_offcore(Counts counts) const {
  if (!is_offcore(counts)) return {};
  return offcore_filter(desc_.offcore, state_.offcore_rsp[counts == Counts::offcore_1 ? 1 : 0]);
}

std::uint64_t Pmu::occurrences(CounterId c, const Retirement& r, bool tagged) const {
  const Counts counts = class_of(c).counts;
  if (counts == Counts::frontend) return selected_frontend(r.frontend);
  if (is_offcore(counts)) return offcore_sum(r.offcore, selected_offcore(counts));
  if (counts == Counts::several) return vpmu::occurrences(class_of(c).kinds.all(), r);
  if (counts != Counts::load_latency) return describe(counts).of(r);
  // Strictly over the threshold (rule L2). A source that cannot measure latency says 0: its loads all qualify.
  const bool slow = r.load.latency == 0 || r.load.latency > state_.pebs_ld_lat_threshold;
  return tagged && slow && load_latency_enabled(c);
}

// An event that no source delivers, or an event of a facility that is not on, reads 0 in every form: INV must not turn
// its absence into a count (rules L2, L11, S1).
bool Pmu::is_countable(CounterId c) const {
  const Counts counts = class_of(c).counts;
  if (counts == Counts::load_latency) return load_latency_enabled(c);
  if (is_precise_store(c)) return precise_store_enabled(c);
  return counts != Counts::unmodelled;
}

// INV with a CMASK that no cycle's count can reach holds in every cycle: the form counts cycles, whoever tells the
// event. The documented form is CMASK = 10 (SDM 3B table 18-56, note 2), Linux uses 16 (rule P18).
bool Pmu::counts_every_cycle(CounterId c) const {
  constexpr unsigned every_cycle_cmask = 10;
  if (!c.is_gp()) return false;
  const EventSpec& s = spec_[c.number()];
  const Counts counts = class_of(c).counts;
  return s.inv && s.cmask >= every_cycle_cmask && !s.edge && is_countable(c) && !needs_pipeline(counts);
}

// What a pipeline tells comes by settle() alone: a retirement is no cycle of it, not even of its INV forms.
std::uint64_t Pmu::increment_of(CounterId c, const Retirement& r, bool tagged) {
  if (counts_every_cycle(c)) return r.cycles;
  if (!is_countable(c) || is_in_totals(class_of(c).counts, r)) return 0;
  std::uint64_t n = occurrences(c, r, tagged);
  if (!c.is_gp()) return n;
  const EventSpec& s = spec_[c.number()];
  if (!CycleCondition::is_asked(s)) return n;
  // A CPU makes the accesses of a string instruction in cycles of their own: at most one in each.
  const AccessPattern& accesses = describe(class_of(c).counts).accesses;
  if (accesses.each) n = unsigned{accesses.has_load(r)} + unsigned{accesses.has_store(r)};
  CycleCondition condition = cycle_condition(c);
  const std::uint64_t counted =
      is_every_cycle(class_of(c).counts) ? condition.tick(s, n) : condition.retire(s, n, r.cycles);
  set_cycle_condition(c, condition);
  return counted;
}

// The events by which an instruction may trigger a record, where it counted `counted`. Of micro-operations that a
// pipeline counts it has some.
std::uint64_t Pmu::triggering(CounterId c, const Retirement& r, std::uint64_t counted) const {
  return is_countable(c) && is_in_totals(class_of(c).counts, r) ? describe(class_of(c).counts).of(r) : counted;
}

void Pmu::pass_cycles(CounterId c, std::uint64_t cycles) {
  if (!c.is_gp() || cycles == 0) return;
  CycleCondition condition = cycle_condition(c);
  condition.pass(spec_[c.number()], cycles);
  set_cycle_condition(c, condition);
}

}  // namespace vpmu
