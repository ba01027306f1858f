#pragma once

namespace vmm::virtio {

/// For this process and the programs that it executes, from now on: no file gets the set-user-ID or set-group-ID bit.
/// The calls that would set one fail with EPERM, and openat2(), whose mode a filter cannot see, with ENOSYS. The
/// process needs no_new_privs. Allocates nothing, so it may be called after fork(). False if the kernel refuses; errno
/// says why.
[[nodiscard]] bool refuse_setuid_bits();

}  // namespace vmm::virtio
