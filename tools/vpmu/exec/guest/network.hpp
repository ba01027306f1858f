#pragma once
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// Starts the loopback interface. A kernel without a network is no failure.
Result<void> start_loopback();
/// Gives eth0 its address, and the guest a route and a name server. Call it in the root that the command will have.
Result<void> start_network(const ExecNetwork& network);

}  // namespace vmm::tool::guest
