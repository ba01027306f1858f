#pragma once
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// Sets the host name, starts the loopback interface, sets the clock, seeds the kernel's random numbers, and lets every
/// user profile.
Result<void> apply_settings(const ExecRequest& request);

}  // namespace vmm::tool::guest
