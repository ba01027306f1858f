#pragma once
#include "kvm/cpuid_table.hpp"
#include "model/model.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// Threads per core by leaf 0BH of a VMM's table: 1 or 2, and 2 where the table does not say.
unsigned threads_per_core(const CpuidTable& vmms);

/// KVM_GET_SUPPORTED_CPUID: adds the model's PMU to KVM's list, which has room for `room` entries: leaf 0AH, and the
/// bits of leaf 01H for DS and IA32_PERF_CAPABILITIES. False if there is no room for leaf 0AH.
bool show_pmu(const MachineModel& model, kvm_cpuid2& list, std::uint32_t room);

/// How much of the model's PMU a vCPU has if the VMM's table has a leaf 0AH of its own. If that leaf is missing, empty
/// or copied from show_pmu(), there are no limits: the vCPU has the whole PMU.
vpmu::PmuLimits pmu_limits(const MachineModel& model, const CpuidTable& vmms);

/// The CPUID of a model for a vCPU of another VMM: guest_cpuid() applied to the table that the VMM would show. The
/// VMM's topology stays, and so does its leaf 0AH, if that is its own.
CpuidTable attached_cpuid(const MachineModel& model, const CpuidTable& vmms, std::uint64_t tsc_hz);

}  // namespace vmm
