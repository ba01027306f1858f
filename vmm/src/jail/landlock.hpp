#pragma once
#include <optional>

#include "support/result.hpp"

namespace vmm {

/// The version of the kernel's Landlock; empty where it has none, or none that is switched on.
std::optional<int> landlock_version();

/// From now on the calling thread, and each that it starts, opens, makes, renames and removes no file, connects to no
/// abstract socket and, where the kernel knows how, to no TCP port. Descriptors that are open stay so. Needs
/// no_new_privs.
Result<void> forbid_all_files(int version);

}  // namespace vmm
