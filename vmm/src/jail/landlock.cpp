#include "jail/landlock.hpp"

#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "kvm/fd.hpp"

namespace vmm {
namespace {

/// Defined here because the build's headers may be older than the kernel at run time. The comments name the Landlock
/// version that introduced a field.
struct Ruleset {
  std::uint64_t fs;
  std::uint64_t net;     ///< From 4.
  std::uint64_t scoped;  ///< From 6.
};

constexpr std::uint64_t up_to(unsigned right) { return (std::uint64_t{2} << right) - 1; }

constexpr std::uint64_t file_rights(int version) {
  if (version >= 5) return up_to(15);  // ioctl of devices
  if (version >= 3) return up_to(14);  // truncate
  if (version >= 2) return up_to(13);  // refer
  return up_to(12);
}

constexpr std::size_t size_of_ruleset(int version) {
  if (version >= 6) return sizeof(Ruleset);
  return version >= 4 ? sizeof(std::uint64_t) * 2 : sizeof(std::uint64_t);
}

}  // namespace

std::optional<int> landlock_version() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) return {};
  return static_cast<int>(version);
}

Result<void> forbid_all_files(int version) {
  constexpr std::uint64_t bind_and_connect = 3;
  constexpr std::uint64_t abstract_sockets = 1;
  // A rule set forbids all that it handles unless a rule allows it: there are no rules.
  const Ruleset rules{.fs = file_rights(version), .net = bind_and_connect, .scoped = abstract_sockets};
  const Fd ruleset{static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, size_of_ruleset(version), 0))};
  if (!ruleset.valid()) return host_error("landlock_create_ruleset", errno, "--no-jail runs without it");
  if (::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0)
    return host_error("landlock_restrict_self", errno, "--no-jail runs without it");
  return {};
}

}  // namespace vmm
