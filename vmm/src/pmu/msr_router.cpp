#include "pmu/msr_router.hpp"

#include <fmt/format.h>

#include "pmu/power_msrs.hpp"
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
  log_->once(LogLevel::debug, fmt::format("{}:{:x}", what, index), "guest {} of unknown MSR {:#x} answered with {}",
             what, index, unknown_ == UnknownMsr::gp ? "#GP" : "0");
  reply.data = 0;
  reply.gp = unknown_ == UnknownMsr::gp ? 1 : 0;
}

MsrRouter::Target MsrRouter::find(std::uint32_t index) const {
  const vpmu::MsrIndex msr{index};
  return {.index = msr, .core = pmu_->find(msr), .is_p6_counter = is_p6_counter(*pmu_, msr)};
}

vpmu::MsrReadResult MsrRouter::read_from(const Target& target) {
  if (target.is_p6_counter) return {.status = vpmu::MsrStatus::ok};
  if (target.core.is_known() || uncore_.package == nullptr) return pmu_->rdmsr(target.core);
  const vpmu::MsrReadResult uncores = uncore_.package->rdmsr(target.index, tsc_->read());
  if (uncores.status != vpmu::MsrStatus::unknown) return uncores;
  return read_power_msr(pmu_->generation().generation, target.index.value(),
                        {.tsc = tsc_->read(), .tsc_khz = backend_->tsc_khz(), .core_khz = uncore_.core_khz});
}

vpmu::MsrStatus MsrRouter::write_to(const Target& target, std::uint64_t value) {
  if (target.is_p6_counter) return vpmu::MsrStatus::ok;
  if (target.core.is_known() || uncore_.package == nullptr) return pmu_->wrmsr(target.core, value);
  const vpmu::MsrStatus uncores = uncore_.package->wrmsr(uncore_.id, target.index, value, tsc_->read());
  if (uncores != vpmu::MsrStatus::unknown) return uncores;
  return write_power_msr(pmu_->generation().generation, target.index.value());
}

void MsrRouter::read(const MsrRead& access) {
  const Target target = find(access.index);
  if (target.index == vpmu::msr::IA32_DEBUGCTL) note_cleared_btf();
  const vpmu::MsrReadResult result = read_from(target);
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

bool MsrRouter::faults(const MsrWrite& access, const Target& target) const {
  if (target.is_p6_counter) return false;
  const bool is_uncores = !target.core.is_known() && uncore_.package != nullptr;
  vpmu::MsrStatus status = is_uncores ? uncore_.package->check_wrmsr(target.index, access.value)
                                      : pmu_->check_wrmsr(target.core, access.value);
  if (is_uncores && status == vpmu::MsrStatus::unknown)
    status = write_power_msr(pmu_->generation().generation, target.index.value());
  return status == vpmu::MsrStatus::gp || (status == vpmu::MsrStatus::unknown && unknown_ == UnknownMsr::gp);
}

void MsrRouter::write(const MsrWrite& access, const Target& target) {
  switch (write_to(target, access.value)) {
    case vpmu::MsrStatus::ok: ++statistics_.pmu_writes; break;
    case vpmu::MsrStatus::gp:
      ++statistics_.faults;
      access.reply.gp = 1;
      return;
    case vpmu::MsrStatus::unknown: unknown(access.index, "WRMSR", access.reply); return;
  }
  if (target.index == vpmu::msr::IA32_DEBUGCTL) set_branch_stepping(vpmu::reg::debugctl::BTF::test(access.value));
}

void MsrRouter::on_debug_exception() {
  pmu_->on_debug_exception();
  set_branch_stepping(false);
}

// The CPU clears BTF when it delivers #DB (rule Z11), without an exit; KVM's MSR shows whether it did.
void MsrRouter::note_cleared_btf() {
  if (!btf_) return;
  const auto kept = backend_->msr(vpmu::msr::IA32_DEBUGCTL.value());
  if (!kept || vpmu::reg::debugctl::BTF::test(*kept)) return;
  btf_ = false;
  pmu_->on_debug_exception();
}

// Written even if it was set before: the CPU may have cleared it. A KVM without branch single-stepping refuses the
// write (old ones) or drops the bit (kvm_intel); the guest then steps single instructions, which debuggers cope with.
void MsrRouter::set_branch_stepping(bool on) {
  constexpr std::uint32_t debugctl = vpmu::msr::IA32_DEBUGCTL.value();
  if (!on && !btf_) return;
  const auto set = backend_->set_msr(debugctl, on ? vpmu::reg::debugctl::BTF::mask : 0);
  const auto kept = set && on ? backend_->msr(debugctl) : Result<std::uint64_t>{0};
  btf_ = on && set && kept && vpmu::reg::debugctl::BTF::test(*kept);
  if (set && btf_ == on) return;
  ++statistics_.lost_branch_stepping;
  log_->once(
      LogLevel::warning, "btf",
      "the host's KVM cannot single-step on branches (DEBUGCTL.BTF): a guest that does steps single instructions "
      "(pmu.msr.lost_btf)");
}

}  // namespace vmm
