#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "support/result.hpp"

namespace vmm {

struct User {
  uid_t uid;
  gid_t gid;
};

/// The user that the process is to become: `name`, the name or number of a user of the host. If `name` is empty:
/// "nobody" if the process is root; otherwise nothing is to change. Fails with kind usage if there is no such user, if
/// it is root, or if the process may not become it.
Result<std::optional<User>> jail_user(const std::string& name);

/// Which capabilities stay. CAP_PERFMON opens performance events that kernel.perf_event_paranoid denies to ordinary
/// users.
enum class Capabilities { none, perfmon };

/// Gives up every capability for good, also in the bounding set, except those that `stay` (if the process has them);
/// becomes `user`.
/// For other threads that exist already only the user changes, which takes their capabilities, too.
Result<void> become(const std::optional<User>& user, Capabilities stay);

/// Runs `act` in a thread that has at most the capabilities of a jailed machine: what it can open can be opened in the
/// jail, without the broker. Waits for it; the calling thread keeps its capabilities. Fails without running `act` if
/// the kernel does not let a thread give up capabilities.
Result<void> as_jailed(const std::function<void()>& act);

/// Gives up the capabilities that become() has left to the calling thread.
Result<void> drop_capabilities();

}  // namespace vmm
