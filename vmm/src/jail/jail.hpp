#pragma once
#include <memory>
#include <optional>
#include <string>

#include "jail/identity.hpp"
#include "jail/syscall_filter.hpp"
#include "support/log.hpp"
#include "support/result.hpp"

namespace vmm {

/// Takes from a process that runs a machine every right that it does not need for this, so that a guest that takes over
/// the process gets little: no_new_privs, no capabilities, an ordinary user, no files but those that are open, a list
/// of system calls for each thread, few descriptors, a limited address space, no core files.
class Jail {
 public:
  struct Options {
    std::string user{};  ///< See jail_user().
    unsigned cpus{1};
    bool counts_by_perf{};   ///< While they run, the vCPUs ask the broker for performance events (source "perf").
    bool outside_devices{};  ///< Daemons implement devices, over connected sockets: see virtio/vhost_user.hpp.
  };

  /// Checks and prepares; nothing is given up yet. `log` must outlive the jail.
  static Result<std::unique_ptr<Jail>> create(const Options& options, Log& log);

  /// Confines the whole process. Call it once, when all files are open and before the guest's first instruction, on the
  /// thread that starts the vCPUs' threads.
  Result<void> enter();
  /// Confines the thread that called enter(), once it has started the others.
  Result<void> confine_main();
  /// Confines the calling thread, a vCPU's, before the guest's first instruction.
  Result<void> confine_vcpu();

 private:
  Jail(Options options, Log& log, std::optional<User> user, SyscallFilter process, SyscallFilter main,
       SyscallFilter vcpu);

  Options options_;
  Log* log_;
  std::optional<User> user_;
  SyscallFilter process_, main_, vcpu_;
};

}  // namespace vmm
