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

/// Who the process is to become: `name`, a name or a number of the host's users; without one "nobody" where it is root,
/// and nobody else where it is not. Fails with kind usage where there is no such user, where it is root, and where the
/// process may not become it.
Result<std::optional<User>> jail_user(const std::string& name);

/// Which capabilities stay. CAP_PERFMON opens performance events where kernel.perf_event_paranoid keeps them from
/// ordinary users.
enum class Capabilities { none, perfmon };

/// Gives up every capability for good, the bounding set's included, but for those that `stay` (where the process has
/// them); becomes `user`. Of other threads that there are already only the user changes, and with it their capabilities
/// go.
Result<void> become(const std::optional<User>& user, Capabilities stay);

/// Runs `act` in a thread that has no capability which a jailed machine lacks: what may be opened there may be opened
/// in the jail. Returns after it; this thread keeps what it has. Fails, without `act`, where the kernel does not let a
/// thread give capabilities up.
Result<void> as_jailed(const std::function<void()>& act);

/// Gives up what become() has left to the calling thread.
Result<void> drop_capabilities();

}  // namespace vmm
