#pragma once
#include <optional>

#include "support/result.hpp"

namespace vmm {

/// The version of the kernel's Landlock; empty if the kernel has none or it is switched off.
std::optional<int> landlock_version();

/// From now on the calling thread, and each that it starts, cannot open, make, rename or remove a file. If the kernel
/// can forbid that, they cannot connect to an abstract socket or a TCP port either. Open descriptors stay usable. Needs
/// no_new_privs.
Result<void> forbid_all_files(int version);

}  // namespace vmm
