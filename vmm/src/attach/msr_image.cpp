#include "attach/msr_image.hpp"

#include "vpmu/bits.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

namespace msr = vpmu::msr;

std::optional<unsigned> gp_counter(std::uint32_t index) {
  for (const vpmu::MsrIndex first : {msr::IA32_PMC0, msr::IA32_A_PMC0})
    if (index - first.value() < vpmu::max_gp_counters) return index - first.value();
  return std::nullopt;
}

}  // namespace

MsrImage::MsrImage(const vpmu::PmuConfig& config, const std::optional<PmuVcpuState>& state)
    : config_{config},
      pmu_{config},
      has_state_{state && pmu_.restore(state->pmu) == vpmu::RestoreStatus::ok},
      rest_{has_state_ ? *state : PmuVcpuState{}} {}

bool MsrImage::has(std::uint32_t index) const {
  return pmu_.rdmsr(vpmu::MsrIndex{index}).status != vpmu::MsrStatus::unknown;
}

std::uint64_t MsrImage::read(std::uint32_t index) const {
  const vpmu::MsrReadResult result = pmu_.rdmsr(vpmu::MsrIndex{index});
  return result.status == vpmu::MsrStatus::ok ? result.value : 0;
}

bool MsrImage::write_state(const vpmu::PmuState& state) {
  vpmu::PmuSnapshot snapshot = pmu_.snapshot();
  snapshot.state = state;
  return pmu_.restore(snapshot) == vpmu::RestoreStatus::ok;
}

// IA32_PERF_CAPABILITIES says what the PMU has, so a new PMU takes over the state, with its own read-only bits of
// IA32_MISC_ENABLE. A PMU without a saved state has not changed by this: it starts with the new capabilities.
bool MsrImage::tell_capabilities(std::uint64_t value) {
  constexpr std::uint64_t writable = vpmu::reg::misc_enable::writable;
  if (!vpmu::may_tell_capabilities(vpmu::describe(config_.generation), value)) return false;
  vpmu::PmuConfig config = config_;
  config.limits.perf_capabilities = value;
  vpmu::Pmu next{config};
  vpmu::PmuSnapshot snapshot = pmu_.snapshot();
  snapshot.state.misc_enable = (snapshot.state.misc_enable & writable) | (next.state().misc_enable & ~writable);
  if (next.restore(snapshot) != vpmu::RestoreStatus::ok) return false;
  config_ = config;
  pmu_ = next;
  changed_ = changed_ || has_state_;
  return true;
}

// Writing the value that a register already has must not disarm a counter.
bool MsrImage::write(std::uint32_t index, std::uint64_t value) {
  namespace enable = vpmu::reg::misc_enable;
  constexpr std::uint64_t fixed = enable::BTS_UNAVAILABLE::mask | enable::PEBS_UNAVAILABLE::mask;
  const vpmu::MsrIndex which{index};
  if (which == msr::IA32_MISC_ENABLE)
    value = (value & ~fixed) | (read(index) & fixed);  // the model's, whatever the VMM writes
  if (read(index) == value) return true;
  if (which == msr::IA32_PERF_CAPABILITIES) return tell_capabilities(value);
  const std::uint64_t before = read(index);
  bool good = false;
  vpmu::PmuState state = pmu_.state();
  if (const auto counter = gp_counter(index); counter && pmu_.rdmsr(which).status == vpmu::MsrStatus::ok) {
    // Sets the full width of the counter; a guest's WRMSR of IA32_PMCi writes 32 bits only.
    state.pmc[*counter] = value & vpmu::low_bits(pmu_.generation().counter_width);
    good = write_state(state);
  } else if (which == msr::IA32_PERF_GLOBAL_STATUS) {
    state.global_status = value;
    good = write_state(state);
  } else {
    good = pmu_.wrmsr(which, value) == vpmu::MsrStatus::ok;
  }
  changed_ = changed_ || (good && (read(index) != before || which == msr::IA32_PERF_GLOBAL_OVF_CTRL));
  return good;
}

std::optional<PmuVcpuState> MsrImage::changed() const {
  if (!changed_) return std::nullopt;
  PmuVcpuState state = rest_;
  state.pmu = pmu_.snapshot();
  return state;
}

// IA32_PERF_GLOBAL_INUSE is left out: it has no state of its own, but summarizes the others.
std::vector<std::uint32_t> pmu_msrs(vpmu::Generation generation) {
  const vpmu::Pmu largest{{.generation = generation, .smt = false}};
  std::vector<std::uint32_t> found;
  const vpmu::MsrSpans trapped = vpmu::trap_ranges(vpmu::describe(generation));
  for (const vpmu::MsrSpan& span : trapped.all())
    for (std::uint32_t index = span.first.value(); index - span.first.value() < span.count; ++index)
      if (const vpmu::MsrIndex which{index};
          which != msr::IA32_PERF_GLOBAL_INUSE && largest.rdmsr(which).status == vpmu::MsrStatus::ok)
        found.push_back(index);
  return found;
}

}  // namespace vmm
