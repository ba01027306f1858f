#include "pmu/pmu_setup.hpp"

#include <linux/kvm.h>

#include <vector>

#include "kvm/msr_filter.hpp"
#include "vcpu/apic_store.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

// The capability is absent if the host has no PMU or the module's enable_pmu is off: then there is nothing to turn off.
Result<void> turn_off_kvms(Vm& vm) {
  if ((vm.check(KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE) == 0) return {};
  return vm.enable(KVM_CAP_PMU_CAPABILITY, {KVM_PMU_CAP_DISABLE});
}

Result<MsrFilter> filter_for(const vpmu::GenerationDesc& generation) {
  std::vector<MsrRange> ranges;
  const vpmu::MsrSpans trapped = vpmu::trap_ranges(generation);
  for (const vpmu::MsrSpan& span : trapped.all()) ranges.push_back({.first = span.first.value(), .count = span.count});
  return MsrFilter::create(ranges);
}

}  // namespace

// Exits are enabled before the filter is set: without them a filtered access raises #GP.
Result<void> prepare_vm_for_pmu(Vm& vm, const vpmu::GenerationDesc& generation) {
  VMM_TRY(turn_off_kvms(vm));
  VMM_TRY(prepare_apic_stores(vm));
  VMM_TRY(vm.enable(KVM_CAP_X86_USER_SPACE_MSR,
                    {KVM_MSR_EXIT_REASON_FILTER | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_INVAL}));
  VMM_ASSIGN(const MsrFilter filter, filter_for(generation));
  return vm.set_msr_filter(filter.native());
}

Result<void> prepare_vm_for_pmu_beside(const OthersMsrExits& theirs, Vm& vm, const vpmu::GenerationDesc& generation) {
  VMM_TRY(turn_off_kvms(vm));
  VMM_TRY(prepare_apic_stores(vm));
  VMM_TRY(vm.enable(KVM_CAP_X86_USER_SPACE_MSR, {theirs.exit_reasons | KVM_MSR_EXIT_REASON_FILTER}));
  return set_msr_filter_beside(theirs.filter, vm, generation);
}

Result<void> set_msr_filter_beside(const kvm_msr_filter& theirs, Vm& vm, const vpmu::GenerationDesc& generation) {
  VMM_ASSIGN(MsrFilter filter, filter_for(generation));
  VMM_TRY(filter.add_others(theirs));
  return vm.set_msr_filter(filter.native());
}

}  // namespace vmm
