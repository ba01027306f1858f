#pragma once
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// The host's name, the loopback interface, a seed for the kernel's random numbers, and leave for each user to profile.
Result<void> apply_settings(const ExecRequest& request);

}  // namespace vmm::tool::guest
