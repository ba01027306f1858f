#pragma once
#include "kvm/cpuid_table.hpp"
#include "model/model.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// Threads of a core that a VMM's table tells of; 2 where it tells of none.
unsigned threads_per_core(const CpuidTable& vmms);

/// KVM_GET_SUPPORTED_CPUID: shows the model's PMU in a list of KVM's with room for `room` entries: leaf 0AH, and what
/// leaf 01H tells of DS and of IA32_PERF_CAPABILITIES. False where there is no room for leaf 0AH.
bool show_pmu(const MachineModel& model, kvm_cpuid2& list, std::uint32_t room);

/// What a VMM's table leaves a vCPU of the model's PMU, by a leaf 0AH of its own. One that is missing or empty says
/// nothing, and neither does one that was handed on from show_pmu(): then all of it.
vpmu::PmuLimits pmu_limits(const MachineModel& model, const CpuidTable& vmms);

/// The CPUID of a model for a vCPU of another VMM: what guest_cpuid() makes of what that VMM would show, with that
/// VMM's topology, and with a leaf 0AH of its own as it stands.
CpuidTable attached_cpuid(const MachineModel& model, const CpuidTable& vmms, std::uint64_t tsc_hz);

}  // namespace vmm
