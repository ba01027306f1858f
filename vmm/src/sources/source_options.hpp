#pragma once
#include <functional>
#include <memory>

#include "exec/compile/compiling.hpp"
#include "perf/cpu_timer.hpp"
#include "perf/perf_host.hpp"
#include "sources/model_log.hpp"
#include "sources/shared_caches.hpp"
#include "sources/time_model.hpp"
#include "support/result.hpp"
#include "uarch/profile_changes.hpp"

namespace vmm {

class CountSource;
struct SourceParts;

/// What users choose about a counting source, besides its name. Passed unchanged from a machine's configuration to the
/// source; each source uses what concerns it.
struct SourceOptions {
  bool was_open{};  ///< The user did not name a source. If the chosen one is not available for a vCPU, the clock source
                    ///< is used, with a warning.
  vpmu::exec::Compiling compiling{};  ///< For sources that run the guest's code: whether frequent code is compiled.
  TimeModel time{};                   ///< For sources that run the guest's code.
  /// For the source that has a processor model: what of the generation's profile is different. It must fit it.
  vpmu::uarch::ProfileChanges changes{};
  ModelLog model_log{};  ///< For sources with a processor model: receives its result of each access.
  /// Makes the source, in place of the one that is named: for tests that have their own. May be empty.
  std::function<Result<std::unique_ptr<CountSource>>(const SourceParts& parts)> instead{};
};

/// The frequency of the core, if users have chosen one; else, and where an instruction is a tick of the TSC, 0: the
/// TSC's.
inline std::uint64_t core_khz(const SourceOptions& options) {
  if (options.time != TimeModel::pipeline) return 0;
  return options.changes.of(vpmu::uarch::Parameter::mhz).value_or(0) * 1000;
}

/// What the code that runs a vCPU provides to its source.
struct SourceServices {
  TimerFactory make_timer{CpuTimer::create};             ///< Makes the clock that sources count by.
  PerfHostFactory make_perf_host{make_linux_perf_host};  ///< Opens the host's counters.
  unsigned cpu{};                                        ///< The vCPU's number.
  SharedCaches* caches{};  ///< Shared by vCPUs that run one at a time. May be null; must outlive the source.
};

}  // namespace vmm
