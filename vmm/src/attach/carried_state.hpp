#pragma once
#include <linux/kvm.h>

#include <cstddef>
#include <optional>

#include "pmu/pmu_vcpu.hpp"

namespace vmm {

/// Where a VMM that knows nothing of our PMU carries its state through a snapshot or a migration: in the state of
/// nested virtualization, which the models do not have. A VMM asks for it (KVM_GET_NESTED_STATE), stores a VMCB's 4096
/// bytes of it unseen where it says that it is AMD's and that they are there, and gives it back (KVM_SET_NESTED_STATE).
///
/// Size of what a VMM must have room for.
constexpr std::size_t carried_size = offsetof(kvm_nested_state, data) + KVM_STATE_NESTED_SVM_VMCB_SIZE;

/// Writes `state` where `to`, a buffer of to->size bytes, has its data; everything else of it stays but its format and
/// size. False when it is too small, or its guest has a guest of its own.
bool carry(const PmuVcpuState& state, kvm_nested_state& to);

/// What carry() wrote; empty when `from`, of from.size bytes, is something else. The bytes may have come over a
/// network: the PMU checks them.
std::optional<PmuVcpuState> carried(const kvm_nested_state& from);

}  // namespace vmm
