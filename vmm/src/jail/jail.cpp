#include "jail/jail.hpp"

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <limits>
#include <string_view>

#include "jail/landlock.hpp"

namespace vmm {
namespace {

Result<void> lower_limit(__rlimit_resource_t resource, std::string_view name, rlim_t max) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return host_error("getrlimit of " + std::string{name}, errno);
  limit.rlim_max = std::min(limit.rlim_max, max);
  limit.rlim_cur = std::min(limit.rlim_cur, max);
  if (::setrlimit(resource, &limit) != 0) return host_error("setrlimit of " + std::string{name}, errno);
  return {};
}

#ifdef VPMU_WITHOUT_SYSCALL_FILTERS
constexpr bool limits_memory = false;  // a sanitizer's shadow memory is as large as the address space
#else
constexpr bool limits_memory = true;
#endif

/// In bytes; 0 when it cannot be found out.
rlim_t address_space_in_use() {
  unsigned long pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
  std::fclose(file);
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

Result<void> lower_limits(unsigned cpus) {
  // Clients of the control socket; each vCPU's performance events.
  constexpr rlim_t descriptors = 128, descriptors_of_cpu = 32;
  // Decoded and compiled code, stacks, statistics.
  constexpr rlim_t more_memory = rlim_t{2} << 30U, more_memory_of_cpu = rlim_t{512} << 20U;
  VMM_TRY(lower_limit(RLIMIT_CORE, "RLIMIT_CORE", 0));
  VMM_TRY(lower_limit(RLIMIT_NOFILE, "RLIMIT_NOFILE", descriptors + descriptors_of_cpu * cpus));
  const rlim_t now = limits_memory ? address_space_in_use() : 0;
  if (now != 0) VMM_TRY(lower_limit(RLIMIT_AS, "RLIMIT_AS", now + more_memory + more_memory_of_cpu * cpus));
  return {};
}

}  // namespace

Jail::Jail(Options options, Log& log, std::optional<User> user, SyscallFilter process, SyscallFilter main,
           SyscallFilter vcpu)
    : options_{std::move(options)},
      log_{&log},
      user_{user},
      process_{std::move(process)},
      main_{std::move(main)},
      vcpu_{std::move(vcpu)} {}

Result<std::unique_ptr<Jail>> Jail::create(const Options& options, Log& log) {
  VMM_ASSIGN(const auto user, jail_user(options.user));
  const VcpuNeeds needs{.counts_by_perf = options.counts_by_perf, .outside_devices = options.outside_devices};
  VMM_ASSIGN(auto process, SyscallFilter::create(Confined::process, needs));
  VMM_ASSIGN(auto main, SyscallFilter::create(Confined::main, needs));
  VMM_ASSIGN(auto vcpu, SyscallFilter::create(Confined::vcpu, needs));
  return std::unique_ptr<Jail>{new Jail{options, log, user, std::move(process), std::move(main), std::move(vcpu)}};
}

Result<void> Jail::enter() {
  VMM_TRY(name_forbidden_calls());
  // Before it shrinks a thread's heap, the C library reads a file of /proc.
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  // It reads a file of /etc before it gives the first date, even one in UTC.
  ::tzset();
  VMM_TRY(lower_limits(options_.cpus));
  // CAP_PERFMON goes with confine_vcpu(): before, each vCPU opens the clock that ends its time slices.
  VMM_TRY(become(user_, Capabilities::perfmon));
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return host_error("prctl of PR_SET_NO_NEW_PRIVS", errno);
  if (const auto version = landlock_version()) {
    VMM_TRY(forbid_all_files(*version));
    log_->debug("jail: landlock, version {}", *version);
  } else {
    log_->info("jail: this kernel has no landlock; the system call filters alone keep files away");
  }
  return process_.load();
}

Result<void> Jail::confine_main() {
  VMM_TRY(drop_capabilities());
  return main_.load();
}

Result<void> Jail::confine_vcpu() {
  VMM_TRY(drop_capabilities());
  return vcpu_.load();
}

}  // namespace vmm
