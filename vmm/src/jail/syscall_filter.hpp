#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace vmm {

/// For whom a filter is.
enum class Confined {
  process,  ///< What any thread does from the machine's start to its end.
  main,     ///< What the session's thread does once the others run.
  vcpu,     ///< What a vCPU's thread does once it has opened what it needs.
};

/// What a vCPU's thread does besides running the guest.
struct VcpuNeeds {
  bool counts_by_perf{};   ///< Gets performance events from the broker while it runs.
  bool outside_devices{};  ///< Talks to daemons that are devices, over sockets that are connected.
};

/// A list of the system calls that a thread may still make. Any other call ends the process with exit code 1 and one
/// line on standard error, which names the call and the thread; but with Confined::process openat() just fails. A build
/// with sanitizers has no filters: their runtime makes calls of its own.
class SyscallFilter {
 public:
  /// Fails if libseccomp does.
  static Result<SyscallFilter> create(Confined whom, VcpuNeeds needs);
  SyscallFilter(SyscallFilter&&) noexcept;
  SyscallFilter& operator=(SyscallFilter&&) noexcept;
  ~SyscallFilter();

  /// The filter holds from now on: with Confined::process for all threads of the process, otherwise for the calling
  /// one. Filters add up. Any thread may call it.
  Result<void> load();

 private:
  struct Filter;
  explicit SyscallFilter(std::unique_ptr<Filter> filter);
  std::unique_ptr<Filter> filter_;
};

/// Installs the handler of SIGSYS, which prints the forbidden call (see SyscallFilter) and gives the terminal on
/// standard input back the settings that it has now. Call it once, before any filter.
Result<void> name_forbidden_calls();

}  // namespace vmm
