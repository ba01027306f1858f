#pragma once
#include <cstdint>

namespace vmm {

/// CPUID with this in EAX, in ring 3: the task that runs is a command whose events are counted, from its next system
/// call on. Of the leaves that belong to a hypervisor.
inline constexpr std::uint32_t task_mark_leaf = 0x4000'7670;

}  // namespace vmm
