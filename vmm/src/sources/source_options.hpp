#pragma once
#include "exec/compiling.hpp"
#include "perf/cpu_timer.hpp"
#include "perf/perf_host.hpp"
#include "sources/model_log.hpp"
#include "sources/shared_caches.hpp"

namespace vmm {

/// What users choose about a counting source, besides its name. Passed unchanged from a machine's configuration to the
/// source; each source uses what concerns it.
struct SourceOptions {
  bool was_open{};  ///< The user did not name a source. If the chosen one is not available for a vCPU, the clock source
                    ///< is used, with a warning.
  vpmu::exec::Compiling compiling{};  ///< For sources that run the guest's code: whether frequent code is compiled.
  ModelLog model_log{};               ///< For sources with a processor model: receives its result of each access.
};

/// What the code that runs a vCPU provides to its source.
struct SourceServices {
  TimerFactory make_timer{CpuTimer::create};             ///< Makes the clock that sources count by.
  PerfHostFactory make_perf_host{make_linux_perf_host};  ///< Opens the host's counters.
  SharedCaches* caches{};  ///< Shared by vCPUs that run one at a time. May be null; must outlive the source.
};

}  // namespace vmm
