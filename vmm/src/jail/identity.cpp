#include "jail/identity.hpp"

#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <thread>

#include <fmt/format.h>

namespace vmm {
namespace {

#ifndef CAP_PERFMON
constexpr unsigned CAP_PERFMON = 38;
#endif

constexpr std::uint64_t bit_of(unsigned capability) { return std::uint64_t{1} << capability; }

using Data = std::array<__user_cap_data_struct, 2>;

__user_cap_header_struct header() { return {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0}; }

Result<std::uint64_t> permitted() {
  auto head = header();
  Data data{};
  if (::syscall(SYS_capget, &head, data.data()) != 0) return host_error("capget", errno);
  return data[0].permitted | std::uint64_t{data[1].permitted} << 32U;
}

Result<void> set_capabilities(std::uint64_t all) {
  auto head = header();
  Data data{};
  data[0].permitted = data[0].effective = static_cast<std::uint32_t>(all);
  data[1].permitted = data[1].effective = static_cast<std::uint32_t>(all >> 32U);
  if (::syscall(SYS_capset, &head, data.data()) != 0) return host_error("capset", errno);
  return {};
}

std::uint64_t of_the_jail(std::uint64_t had) { return had & bit_of(CAP_PERFMON); }

/// A process that may not change the set keeps it. That does no harm: with no_new_privs, a capability that is only in
/// this set can never be gained.
void empty_bounding_set() {
  for (unsigned long capability = 0; capability < 64; ++capability)
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return;
}

const passwd* find_user(const std::string& name) {
  if (const passwd* const user = ::getpwnam(name.c_str())) return user;
  uid_t number{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc{} && end == name.data() + name.size() ? ::getpwuid(number) : nullptr;
}

Result<void> change_user(const User& user) {
  const auto cannot = [&user](const char* call) {
    return host_error(fmt::format("cannot become user {}: {}", user.uid, call), errno,
                      "give another with --user, or --no-jail");
  };
  if (::setgroups(0, nullptr) != 0) return cannot("setgroups");
  if (::setresgid(user.gid, user.gid, user.gid) != 0) return cannot("setresgid");
  if (::setresuid(user.uid, user.uid, user.uid) != 0) return cannot("setresuid");
  return {};
}

}  // namespace

Result<std::optional<User>> jail_user(const std::string& name) {
  const bool root = ::geteuid() == 0;
  if (name.empty() && !root) return std::optional<User>{};
  const std::string wanted = name.empty() ? "nobody" : name;
  const passwd* const found = find_user(wanted);
  if (found == nullptr)
    return usage_error(fmt::format("no user {} on this host", printable(wanted)), "give one with --user, or --no-jail");
  if (found->pw_uid == 0)
    return usage_error(fmt::format("a jailed machine does not run as root, which user {} is", printable(wanted)),
                       "give another user with --user, or --no-jail");
  if (!root && found->pw_uid != ::geteuid())
    return usage_error(fmt::format("only root can become user {}", printable(wanted)),
                       "leave out --user: then the machine runs as you");
  return std::optional<User>{{.uid = found->pw_uid, .gid = found->pw_gid}};
}

Result<void> as_jailed(const std::function<void()>& act) {
  VMM_ASSIGN(const std::uint64_t had, permitted());
  Result<void> gave_up;
  std::thread{[&] {
    gave_up = set_capabilities(of_the_jail(had));
    if (gave_up) act();
  }}.join();
  return gave_up;
}

namespace {

/// Restores PR_SET_PDEATHSIG after a change of the user, which clears it: a process that was to end with its parent
/// still does.
class EndWithParent {
 public:
  EndWithParent() { ::prctl(PR_GET_PDEATHSIG, &signal_, 0, 0, 0); }
  ~EndWithParent() {
    if (signal_ == 0) return;
    ::prctl(PR_SET_PDEATHSIG, signal_, 0, 0, 0);
    if (::getppid() != parent_) ::raise(signal_);  // the parent has ended meanwhile
  }
  EndWithParent(const EndWithParent&) = delete;
  EndWithParent& operator=(const EndWithParent&) = delete;

 private:
  int signal_{};
  pid_t parent_{::getppid()};
};

}  // namespace

Result<void> become(const std::optional<User>& user, Capabilities stay) {
  VMM_ASSIGN(const std::uint64_t had, permitted());
  const std::uint64_t kept = stay == Capabilities::perfmon ? of_the_jail(had) : 0;
  empty_bounding_set();
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  // Without this, the change of the user would also take the capabilities that are to stay.
  if (kept != 0 && ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return host_error("prctl of PR_SET_KEEPCAPS", errno);
  if (user && user->uid != ::geteuid()) {
    const EndWithParent end;
    VMM_TRY(change_user(*user));
  }
  return set_capabilities(kept);
}

Result<void> drop_capabilities() { return set_capabilities(0); }

}  // namespace vmm
