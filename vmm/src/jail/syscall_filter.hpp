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

/// What a vCPU's thread does beside running the guest.
struct VcpuNeeds {
  bool counts_by_perf{};   ///< Opens performance events while it runs.
  bool outside_devices{};  ///< Talks to daemons that are devices, over sockets that are connected.
};

/// A list of the system calls that a thread may still make. Another one ends the process: one line on standard error
/// names the call and the thread, exit code 1; but Confined::process has openat() fail. A build with sanitizers has no
/// filters: their runtime makes calls of its own.
class SyscallFilter {
 public:
  /// Fails where libseccomp does.
  static Result<SyscallFilter> create(Confined whom, VcpuNeeds needs);
  SyscallFilter(SyscallFilter&&) noexcept;
  SyscallFilter& operator=(SyscallFilter&&) noexcept;
  ~SyscallFilter();

  /// From now on. Confined::process: on every thread that there is; else on the calling one. Filters add up. Any
  /// thread.
  Result<void> load();

 private:
  struct Filter;
  explicit SyscallFilter(std::unique_ptr<Filter> filter);
  std::unique_ptr<Filter> filter_;
};

/// Lets the process say what it is ended for: see SyscallFilter. Takes SIGSYS; gives the terminal on standard input the
/// settings back that it has now. Once, before any filter.
Result<void> name_forbidden_calls();

}  // namespace vmm
