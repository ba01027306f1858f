#pragma once
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// The kernel's own file systems, below the root of the initramfs.
Result<void> mount_first();
/// Loads the modules of `exec_module_list`, and those of the request, from the initramfs.
Result<void> load_first_modules();
Result<void> load_modules(const ExecRequest& request);
/// Makes the host's root, or the request's disk, the root: read-only, with an overlay in memory over it, and with the
/// kernel's file systems and the mounts of the request.
Result<void> mount_root(const ExecRequest& request);

}  // namespace vmm::tool::guest
