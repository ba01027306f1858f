#pragma once
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// Also where the kernel has no network, which is no failure.
Result<void> start_loopback();
/// Gives eth0 its address, and the guest a way out and a name server. In the root that the command will have.
Result<void> start_network(const ExecNetwork& network);

}  // namespace vmm::tool::guest
