#include "pmu/msr_router.hpp"

#include <fmt/format.h>

#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t p6_counters = 2;

/// Whether this is one of P6's counters or selects that this PMU lacks. KVM gives each guest these MSRs, which hold
/// nothing, because some guests write to them before they check for a PMU.
bool is_p6_counter(const vpmu::Pmu& pmu, vpmu::MsrIndex index) {
  for (const vpmu::MsrIndex first : {vpmu::msr::IA32_PMC0, vpmu::msr::IA32_PERFEVTSEL0})
    if (const std::uint32_t n = index.value() - first.value(); n < p6_counters && n >= pmu.gp_counters()) return true;
  return false;
}

}  // namespace

void MsrRouter::unknown(std::uint32_t index, const char* what, const MsrReply& reply) {
  ++statistics_.unknown;
  if (log_->first_time(fmt::format("{}:{:x}", what, index)))
    log_->debug("guest {} of unknown MSR {:#x} answered with {}", what, index,
                unknown_ == UnknownMsr::gp ? "#GP" : "0");
  reply.data = 0;
  reply.gp = unknown_ == UnknownMsr::gp ? 1 : 0;
}

MsrRouter::Place MsrRouter::find(std::uint32_t index) const {
  const vpmu::MsrIndex msr{index};
  return {.index = msr, .core = pmu_->find(msr), .is_p6_counter = is_p6_counter(*pmu_, msr)};
}

vpmu::MsrReadResult MsrRouter::ask(const Place& place) {
  if (place.is_p6_counter) return {.status = vpmu::MsrStatus::ok};
  if (place.core.is_known() || uncore_.package == nullptr) return pmu_->rdmsr(place.core);
  return uncore_.package->rdmsr(place.index, tsc_->read());
}

vpmu::MsrStatus MsrRouter::tell(const Place& place, std::uint64_t value) {
  if (place.is_p6_counter) return vpmu::MsrStatus::ok;
  if (place.core.is_known() || uncore_.package == nullptr) return pmu_->wrmsr(place.core, value);
  return uncore_.package->wrmsr(uncore_.id, place.index, value, tsc_->read());
}

void MsrRouter::read(const MsrRead& access) {
  const Place place = find(access.index);
  if (place.index == vpmu::msr::IA32_DEBUGCTL) note_cleared_btf();
  const vpmu::MsrReadResult result = ask(place);
  switch (result.status) {
    case vpmu::MsrStatus::ok:
      ++statistics_.pmu_reads;
      access.reply.data = result.value;
      return;
    case vpmu::MsrStatus::gp:
      ++statistics_.faults;
      access.reply.gp = 1;
      return;
    case vpmu::MsrStatus::unknown: unknown(access.index, "RDMSR", access.reply); return;
  }
}

bool MsrRouter::faults(const MsrWrite& access, const Place& place) const {
  if (place.is_p6_counter) return false;
  const bool is_uncores = !place.core.is_known() && uncore_.package != nullptr;
  const vpmu::MsrStatus status = is_uncores ? uncore_.package->check_wrmsr(place.index, access.value)
                                            : pmu_->check_wrmsr(place.core, access.value);
  return status == vpmu::MsrStatus::gp || (status == vpmu::MsrStatus::unknown && unknown_ == UnknownMsr::gp);
}

void MsrRouter::write(const MsrWrite& access, const Place& place) {
  switch (tell(place, access.value)) {
    case vpmu::MsrStatus::ok: ++statistics_.pmu_writes; break;
    case vpmu::MsrStatus::gp:
      ++statistics_.faults;
      access.reply.gp = 1;
      return;
    case vpmu::MsrStatus::unknown: unknown(access.index, "WRMSR", access.reply); return;
  }
  if (place.index == vpmu::msr::IA32_DEBUGCTL) set_branch_stepping(vpmu::reg::debugctl::BTF::test(access.value));
}

void MsrRouter::on_debug_exception() {
  pmu_->on_debug_exception();
  set_branch_stepping(false);
}

// The CPU clears BTF when it delivers #DB (rule Z11), without an exit; KVM's MSR shows whether it did.
void MsrRouter::note_cleared_btf() {
  if (!btf_) return;
  const auto kept = port_->msr(vpmu::msr::IA32_DEBUGCTL.value());
  if (!kept || vpmu::reg::debugctl::BTF::test(*kept)) return;
  btf_ = false;
  pmu_->on_debug_exception();
}

// Written even if it was set before: the CPU may have cleared it. A KVM without branch single-stepping refuses the
// write (old ones) or drops the bit (kvm_intel); the guest then steps single instructions, which debuggers cope with.
void MsrRouter::set_branch_stepping(bool on) {
  constexpr std::uint32_t debugctl = vpmu::msr::IA32_DEBUGCTL.value();
  if (!on && !btf_) return;
  const auto set = port_->set_msr(debugctl, on ? vpmu::reg::debugctl::BTF::mask : 0);
  const auto kept = set && on ? port_->msr(debugctl) : Result<std::uint64_t>{0};
  btf_ = on && set && kept && vpmu::reg::debugctl::BTF::test(*kept);
  if (set && btf_ == on) return;
  ++statistics_.lost_branch_stepping;
  if (log_->first_time("btf"))
    log_->warning(
        "the host's KVM cannot single-step on branches (DEBUGCTL.BTF): a guest that does steps single instructions "
        "(pmu.msr.lost_btf)");
}

}  // namespace vmm
