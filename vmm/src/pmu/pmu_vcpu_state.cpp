// Saves and restores a vCPU's PMU, and reports its statistics.
#include <algorithm>

#include <fmt/format.h>

#include "pmu/pmu_vcpu.hpp"
#include "vpmu/registers.hpp"

namespace vmm {

PmuVcpuState PmuVcpu::state() const {
  return {.pmu = pmu_.snapshot(),
          .pending_pmi = pmi_.pending() ? 1ULL : 0,
          .unread = unread_.raw(),
          .nmi_in_service = nmi_in_service_ ? 1ULL : 0};
}

Result<vpmu::RestoreStatus> PmuVcpu::restore(const PmuVcpuState& state) {
  if (state.pending_pmi > 1) return vpmu::RestoreStatus::illegal_value;
  const auto status = pmu_.restore(state.pmu);
  if (status != vpmu::RestoreStatus::ok) return status;
  router_.set_branch_stepping(vpmu::reg::debugctl::BTF::test(pmu_.rdmsr(vpmu::msr::IA32_DEBUGCTL).value));
  pmi_.set_pending(state.pending_pmi != 0);
  unread_ = vpmu::CounterSet{static_cast<std::uint16_t>(state.unread)};
  nmi_in_service_ = state.nmi_in_service != 0;
  selected_ = pmu_.selected();
  const bool in_use = !(unread_ | selected_).empty();
  if (in_use) ++statistics_.restores_in_use;
  VMM_TRY(use(in_use));
  return status;
}

Result<Bytes> PmuVcpu::save() {
  VMM_ASSIGN(const Bytes source, source_->save(*backend_));
  ByteWriter out;
  out.put(state());
  out.put_run(std::as_bytes(std::span{source_->traits().name}));
  out.put_run(source);
  return out.take();
}

Result<void> PmuVcpu::restore(std::span<const std::byte> image) {
  ByteReader in{image};
  const auto state = in.get<PmuVcpuState>();
  const auto name = in.get_run();
  const auto source = in.get_run();
  if (!in.done())
    return usage_error(
        fmt::format("the snapshot's PMU state of {} bytes has another format than this version's", image.size()),
        version_advice);
  const bool same_source = std::ranges::equal(name, std::as_bytes(std::span{source_->traits().name}));
  VMM_ASSIGN(const bool is_taken, same_source ? source_->restore(*backend_, source) : Result<bool>{true});
  if (!is_taken)
    return usage_error(fmt::format("the snapshot's state of the source {} has another format than this version's",
                                   source_->traits().name),
                       version_advice);
  VMM_ASSIGN(const vpmu::RestoreStatus status, restore(state));
  if (status == vpmu::RestoreStatus::ok) return {};
  return usage_error(
      fmt::format("the snapshot's PMU state cannot be restored: status {}", static_cast<unsigned>(status)),
      version_advice);
}

Result<void> PmuVcpu::reset() {
  pmu_.reset();
  router_.set_branch_stepping(false);
  pmi_.set_pending(false);
  unread_ = selected_ = {};
  nmi_in_service_ = false;
  return use(false);
}

void PmuVcpu::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.exits.rdmsr", statistics_.msr_reads);
  visit("pmu.exits.wrmsr", statistics_.msr_writes);
  visit("pmu.exits.debug", statistics_.debug_exits);
  visit("pmu.exits.kick", statistics_.kicks);
  visit("pmu.restores_in_use", statistics_.restores_in_use);
  visit("pmu.debugged_runs", statistics_.debugged_runs);
  visit("pmu.tsc.unread", tsc_.unread());
  visit("pmu.guest_debug", statistics_.guest_debug);
  visit("pmu.kvm_debug", statistics_.kvm_debug);
  visit("pmu.rdpmc.served", gate_.statistics().served);
  visit("pmu.rdpmc.refused", gate_.statistics().refused);
  visit("pmu.rdpmc.other_faults", gate_.statistics().other_faults);
  visit("pmu.debug_moves.done", debug_moves_.statistics().done);
  visit("pmu.debug_moves.let_through", debug_moves_.statistics().let_through);
  visit("pmu.rdpmc.given_up", gate_.statistics().given_up);
  visit("pmu.msr.faults", router_.statistics().faults);
  visit("pmu.msr.unknown", router_.statistics().unknown);
  visit("pmu.msr.lost_btf", router_.statistics().lost_branch_stepping);
  visit("pmu.pmi.requested", pmi_.statistics().requested);
  visit("pmu.pmi.nmi", pmi_.statistics().delivered_nmi);
  visit("pmu.pmi.fixed", pmi_.statistics().delivered_fixed);
  visit("pmu.pmi.joined", pmi_.statistics().joined);
  visit("pmu.pmi.dropped", pmi_.statistics().dropped);
  visit("pmu.pmi.put_off", pmi_.statistics().put_off);
  visit("pmu.pmi.unmasked", pmi_.statistics().unmasked);
  visit("pmu.pmi.undeliverable", pmi_.statistics().undeliverable);
  visit("pmu.breakpoints.displaced", breakpoints_.displaced());
  const vpmu::PmuStatistics& core = pmu_.statistics();
  visit("pmu.overflows", core.overflows);
  visit("pmu.pebs.records", core.records_written);
  visit("pmu.pebs.dropped_full", core.records_dropped_full);
  visit("pmu.pebs.dropped_bounds", core.records_dropped_bounds);
  visit("pmu.pebs.dropped_fault", core.records_dropped_fault);
  visit("pmu.pebs.late_triggers", core.late_triggers);
  visit("pmu.bts.records", core.branches_stored);
  visit("pmu.bts.dropped_full", core.branches_dropped_full);
  visit("pmu.bts.dropped_bounds", core.branches_dropped_bounds);
  visit("pmu.bts.dropped_fault", core.branches_dropped_fault);
  uncounted_.visit_statistics(visit);
  source_->visit_statistics(visit);
  backend_->visit_statistics(visit);
}

}  // namespace vmm
