#include "perf/perf_errors.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace vmm {
namespace {

struct ErrorRow {
  int system_errno;
  std::string_view what;
  std::string_view advice;
};

constexpr std::array error_rows{
    ErrorRow{
        EACCES, "perf may not count here",
        "set kernel.perf_event_paranoid to 1 or less (sysctl); at 2 it is enough to give the program CAP_PERFMON, at "
        "Debian's 3 start it as root"},
    ErrorRow{EPERM, "perf_event_open is forbidden here",
             "allow it in the container's seccomp profile or the security module, and give CAP_PERFMON"},
    ErrorRow{ENOENT, "this host has no PMU that perf can use", "on a virtual machine ask its host for a virtual PMU"},
    ErrorRow{ENODEV, "this host has no PMU that perf can use", "on a virtual machine ask its host for a virtual PMU"},
    ErrorRow{EOPNOTSUPP, "the host's PMU does not count guests or cannot interrupt",
             "stop virtual machines with KVM's mediated vPMU (kvm module option enable_mediated_pmu), which keeps the "
             "counters for itself"},
    ErrorRow{
        EBUSY, "the host's counters are taken",
        "stop who has them: a virtual machine with KVM's mediated vPMU, or a perf session that wants them for itself"},
    ErrorRow{EMFILE, "too many open files for another event", "raise the limit of open files (ulimit -n)"},
    ErrorRow{EINVAL, "the host's kernel does not take this event", "use a newer host kernel"},
};

}  // namespace

Error perf_open_error(int system_errno, const PerfEventSpec& spec) {
  ErrorRow found{system_errno, "perf_event_open failed", "see the host's kernel log"};
  for (const ErrorRow& row : error_rows)
    if (row.system_errno == system_errno) found = row;
  return {.kind = ErrorKind::host,
          .what = fmt::format("{} (event {}:{:#x}{})", found.what, spec.event.type, spec.event.config,
                              spec.guest_only ? " of the guest" : ""),
          .advice = std::string{found.advice},
          .system_errno = system_errno};
}

bool is_of_one_event(const Error& error) {
  return error.system_errno == EINVAL || error.system_errno == ENOENT || error.system_errno == ENODEV ||
         error.system_errno == EOPNOTSUPP;
}

}  // namespace vmm
