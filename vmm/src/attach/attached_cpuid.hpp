#pragma once
#include "kvm/cpuid_table.hpp"
#include "machine/model.hpp"

namespace vmm {

/// Threads of a core that a VMM's table tells of; 2 where it tells of none.
unsigned threads_per_core(const CpuidTable& vmms);

/// The CPUID of a model for a vCPU of another VMM: what guest_cpuid() makes of what that VMM would show, with that
/// VMM's topology.
CpuidTable attached_cpuid(const MachineModel& model, const CpuidTable& vmms, std::uint64_t tsc_hz);

}  // namespace vmm
