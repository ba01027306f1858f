#pragma once
#include <cstdint>
#include <functional>

namespace vmm {

/// Whether the surrounding VMM filters this access (KVM_MSR_FILTER_*) to an MSR. Empty: there is no such VMM.
using ForeignMsrs = std::function<bool(std::uint32_t access, std::uint32_t index)>;

}  // namespace vmm
