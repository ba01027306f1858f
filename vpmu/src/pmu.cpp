#include "vpmu/pmu.hpp"

#include <algorithm>

#include "boundary.hpp"
#include "msr_table.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

/// The generator (xorshift) would stay at 0.
constexpr std::uint64_t nonzero_seed(std::uint64_t seed) { return seed == 0 ? 0x9E37'79B9'7F4A'7C15 : seed; }

/// The generation, reduced to the limits. The features that decide whether an MSR exists stay: an access to an MSR that
/// the limits remove raises #GP, and is not unknown. SDM 3B 18.2 tells what each version added.
GenerationDesc limited(GenerationDesc g, const PmuLimits& limits) {
  namespace pc = reg::perf_capabilities;
  const std::uint64_t capabilities = limits.perf_capabilities.value_or(perf_capabilities(g));
  g.perfmon_version = std::min(g.perfmon_version, limits.version);
  const std::uint8_t max = g.perfmon_version >= 1 ? limits.gp_counters : 0;
  g.gp_counters = std::min(g.gp_counters, max);
  g.gp_counters_no_smt = std::min(g.gp_counters_no_smt, max);
  g.fixed_counters = g.perfmon_version >= 2 ? std::min(g.fixed_counters, limits.fixed_counters) : std::uint8_t{0};
  if (g.perfmon_version < 4) g.freeze = FreezeKind::legacy;
  if (pc::FW_WRITE::test(capabilities)) g.features.full_width_write = true;
  if (pc::LBR_FMT::get(capabilities) == 0) g.lbr_depth = 0;
  const bool pebs = pc::PEBS_FMT::get(capabilities) != 0 && max != 0;
  g.pebs_counters = pebs ? std::min(g.pebs_counters, max) : std::uint8_t{0};
  if (!pebs) g.misc_enable_reset |= reg::misc_enable::PEBS_UNAVAILABLE::mask;
  if (g.perfmon_version == 0) g.misc_enable_reset &= ~reg::misc_enable::PERFMON_AVAILABLE::mask;
  return g;
}

}  // namespace

Pmu::Pmu(const PmuConfig& config)
    : desc_{limited(describe(config.generation), config.limits)},
      config_{config},
      perf_capabilities_{config.limits.perf_capabilities.value_or(vpmu::perf_capabilities(desc_))},
      gp_counters_{config.smt ? desc_.gp_counters : desc_.gp_counters_no_smt},
      trace_{config.trace} {
  // What the fixed counters count never changes. SDM 3B table 18-2.
  class_[CounterId::fixed(0).index()] = {.counts = Counts::instructions};
  class_[CounterId::fixed(1).index()] = {.counts = Counts::cycles};
  class_[CounterId::fixed(2).index()] = {.counts = Counts::ref_cycles};
  reset();
}

// SDM 3A table 9-1. GLOBAL_CTRL starts with the general-purpose counters enabled, as later editions say.
void Pmu::reset() {
  state_ = {};
  state_.misc_enable = config_.misc_enable.value_or(desc_.misc_enable_reset);
  state_.global_ctrl = low_bits(gp_counters_);
  state_.load_tag_random = nonzero_seed(config_.seed);
  for (unsigned i = 0; i < gp_counters_; ++i) decode_event(i);
  replan_ = true;
}

void Pmu::init() {
  state_.debugctl = 0;
  state_.pebs_enable = 0;
  state_.pmi_after_assist = 0;
  for (unsigned i = 0; i < gp_counters_; ++i) clear_arming(CounterId::gp(i));
  replan_ = true;
}

FoundMsr Pmu::find(MsrIndex index) const {
  const MsrRow* row = MsrTable::find(desc_, index);
  return row == nullptr ? FoundMsr{} : FoundMsr{*row, index.value() - row->first.value()};
}

MsrReadResult Pmu::rdmsr(const FoundMsr& msr) const {
  if (!msr.is_known()) return {};
  if (msr.i_ >= msr.row_->present(*this)) return {.status = MsrStatus::gp};
  return {.status = MsrStatus::ok, .value = msr.row_->read(*this, msr.i_)};
}

MsrStatus Pmu::check_wrmsr(const FoundMsr& msr, std::uint64_t value) const {
  if (!msr.is_known()) return MsrStatus::unknown;
  const bool present = msr.i_ < msr.row_->present(*this);
  return present && MsrTable::legal(*msr.row_, *this, value) ? MsrStatus::ok : MsrStatus::gp;
}

MsrStatus Pmu::wrmsr(const FoundMsr& msr, std::uint64_t value) {
  const MsrStatus status = check_wrmsr(msr, value);
  if (status == MsrStatus::gp) ++statistics_.msr_faults;
  if (status != MsrStatus::ok) return status;
  msr.row_->write(*this, msr.i_, value);
  ++statistics_.msr_writes;
  replan_ = true;
  trace(MsrWritten{.index = msr.row_->first + msr.i_, .value = value});
  return MsrStatus::ok;
}

std::optional<std::uint64_t> Pmu::rdpmc(std::uint32_t ecx, unsigned cpl, bool cr4_pce) const {
  if (cpl > 0 && !cr4_pce) return std::nullopt;
  const auto counter = rdpmc_counter(ecx);
  if (!counter || counter->number() >= (counter->is_gp() ? gp_counters_ : desc_.fixed_counters)) return std::nullopt;
  return counter_value(*counter);
}

void Pmu::settle(const CountDeltas& deltas, GuestEnv& env) {
  Boundary b;
  if (deltas.last_load && tags_all_loads() && load_latency_runs()) keep_tagged_load(*deltas.last_load);
  for (const CounterId c : enabled()) {
    if (c.is_gp()) {
      if (const auto& cycle = deltas.cycle[c.number()]) set_cycle_condition(c, *cycle);
      pass_cycles(c, deltas.filtered_cycles[c.number()]);
    }
    const std::uint64_t n = deltas[c];
    if (n == 0) continue;
    if (!deltas.by_pipeline.has(c) && late_without_instruction(c, n)) ++statistics_.late_triggers;
    if (add(c, n)) overflow(c, b);
  }
  serve(b, nullptr, env);
  end_waits(b);
  request_pmis(b, env);
}

// The state machine of one instruction boundary: triggers and overflows in index order, then service.
void Pmu::retire(const Retirement& r, GuestEnv& env) {
  state_.lbr_cycles += r.cycles;
  // The LBR entry of the trigger itself is there before the assist freezes the stack (rule Z12).
  const bool taken = r.branch.kind != BranchKind::none && r.branch.taken;
  const TakenBranch branch{.from = r.ip + r.branch_offset, .to = r.next_ip, .cpl = r.cpl, .what = r.branch};
  if (taken) push_branch(branch);

  Boundary b;
  const bool tagged = take_load_tag(r);
  if (tagged) keep_tagged_load(r.load);
  for (const CounterId c : enabled()) {
    if (!counts_at(c, r.cpl)) {
      pass_cycles(c, r.cycles);
      continue;
    }
    const std::uint64_t n = increment_of(c, r, tagged);
    const bool armed = (state_.armed & bit(c.index())) != 0;
    if (armed && pebs_enabled(c) && is_trigger(c, triggering(c, r, n))) b.due.triggered.add(c);
    if (!add(c, n)) continue;
    overflow(c, b);
    if (is_pdir(c)) b.due.triggered.add(c);  // rule D2: the overflowing instruction itself
  }
  serve(b, &r, env);
  // After the PEBS record, before the interrupt (rule F15).
  if (taken) store_branch(branch, b, env);
  end_waits(b);
  request_pmis(b, env);
}

// Rule Z11; TR stays.
void Pmu::on_debug_exception() {
  state_.debugctl &= ~(reg::debugctl::LBR::mask | reg::debugctl::BTF::mask);
  replan_ = true;
}

void Pmu::on_uncore_overflow(GuestEnv& env) {
  state_.global_status |= reg::global_status::OVF_UNCORE::mask;
  if (!reg::debugctl::ENABLE_UNCORE_PMI::test(state_.debugctl)) return;
  post_pmi(PmiCause::overflow);
  ++statistics_.pmi_requests;
  env.request_pmi();
}

}  // namespace vpmu
