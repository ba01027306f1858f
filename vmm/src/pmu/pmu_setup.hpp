#pragma once
#include "kvm/vm.hpp"
#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// Prepares a VM for our PMU, before its first vCPU: KVM's own vPMU off, MSR exits on, and a filter that traps exactly
/// the MSRs that the generation's PMU answers. Fails (host) when KVM lacks a capability, and names it.
Result<void> prepare_vm_for_pmu(Vm& vm, const vpmu::GenerationDesc& generation);

/// The MSR exits and filter that another VMM has asked KVM for.
struct OthersMsrExits {
  const kvm_msr_filter& filter;
  std::uint64_t exit_reasons{};  ///< KVM_MSR_EXIT_REASON_*.
};

/// The same for another VMM's VM: keeps its exits, and adds only those of the PMU.
Result<void> prepare_vm_for_pmu_beside(const OthersMsrExits& theirs, Vm& vm, const vpmu::GenerationDesc& generation);
/// Replaces the filter of such a VM.
Result<void> set_msr_filter_beside(const kvm_msr_filter& theirs, Vm& vm, const vpmu::GenerationDesc& generation);

}  // namespace vmm
