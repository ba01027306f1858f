#include "vcpu/pmu_setup.hpp"

#include <linux/kvm.h>

#include <vector>

#include "kvm/msr_filter.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

Result<void> prepare_vm_for_pmu(Vm& vm, const vpmu::GenerationDesc& generation, RdpmcMethod rdpmc) {
  // Absent when the host has no PMU or the module's enable_pmu is off: then there is nothing to turn off.
  if ((vm.check(KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE) != 0)
    VMM_TRY(vm.enable(KVM_CAP_PMU_CAPABILITY, {KVM_PMU_CAP_DISABLE}));
  // Exits come before the filter: a filtered access without them is #GP.
  VMM_TRY(vm.enable(KVM_CAP_X86_USER_SPACE_MSR,
                    {KVM_MSR_EXIT_REASON_FILTER | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_INVAL}));
  std::vector<MsrRange> ranges;
  for (const vpmu::MsrSpan& span : vpmu::trap_ranges(generation).all())
    ranges.push_back({.first = span.first.value(), .count = span.count});
  if (rdpmc == RdpmcMethod::rewrite) {
    ranges.push_back({.first = 0, .count = generation.gp_counters_no_smt, .trap = MsrTrap::read});
    ranges.push_back({.first = vpmu::rdpmc_fixed_counters, .count = generation.fixed_counters, .trap = MsrTrap::read});
  }
  VMM_ASSIGN(const MsrFilter filter, MsrFilter::create(ranges));
  return vm.set_msr_filter(filter.native());
}

}  // namespace vmm
