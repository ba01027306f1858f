#pragma once
#include <string>

#include "exec/kernel.hpp"
#include "machine/config.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// The name, in a GuestCache, of the guest that this program boots from this configuration on this host, with these
/// devices (any text that tells them apart). The kernel's content comes into it, not its path, and the initramfs's; so
/// does this program's. `machine.initrd_content` must be set, and everything chosen. Cost: reading the program.
Result<std::string> guest_key(const MachineConfig& machine, const KernelFile& kernel, const std::string& devices);

}  // namespace vmm::tool
