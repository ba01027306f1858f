#pragma once
#include <linux/kvm.h>

#include <cstddef>
#include <optional>

#include "pmu/pmu_vcpu.hpp"

namespace vmm {

/// A VMM that knows nothing of our PMU carries its state through a snapshot or a migration inside the state of nested
/// virtualization, which the models do not have. The VMM asks for that state (KVM_GET_NESTED_STATE). If its format is
/// AMD's and it includes a VMCB, the VMM stores these 4096 bytes unseen, and gives them back (KVM_SET_NESTED_STATE).
///
/// Size of such a state, for which the VMM must have room.
constexpr std::size_t carried_size = offsetof(kvm_nested_state, data) + KVM_STATE_NESTED_SVM_VMCB_SIZE;

/// Writes `state` to the data of `to`, a buffer of to.size bytes, and sets its format and size; its other members stay.
/// False if the buffer is too small or the vCPU is in a nested guest.
bool carry(const PmuVcpuState& state, kvm_nested_state& to);

/// What carry() wrote; empty if `from`, of from.size bytes, is something else. The bytes may have come over a network:
/// the PMU checks them.
std::optional<PmuVcpuState> carried(const kvm_nested_state& from);

}  // namespace vmm
