#pragma once
#include <cstdint>
#include <functional>

namespace vmm {

/// Whether a VMM around us filters an access (KVM_MSR_FILTER_*) to an MSR. Empty: there is none.
using OthersMsrs = std::function<bool(std::uint32_t access, std::uint32_t index)>;

}  // namespace vmm
