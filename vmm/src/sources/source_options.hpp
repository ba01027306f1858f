#pragma once
#include "exec/compiling.hpp"
#include "perf/cpu_timer.hpp"
#include "perf/perf_host.hpp"
#include "sources/model_log.hpp"
#include "sources/shared_caches.hpp"

namespace vmm {

/// What users choose of a counting source, beside its name. Passed on whole from a machine's configuration to the
/// source; each source takes what concerns it.
struct SourceOptions {
  bool was_open{};  ///< Nobody asked for the source by its name: where it cannot be had for a vCPU, the clock counts,
                    ///< with a warning.
  vpmu::exec::Compiling compiling{};  ///< Of sources that run the guest's code: whether what runs often is compiled.
  ModelLog model_log{};               ///< Of sources that have a model of the processor: gets what it says of accesses.
};

/// What whoever runs a vCPU lends to its source.
struct SourceServices {
  TimerFactory make_timer{CpuTimer::create};             ///< The clock that sources count by,
  PerfHostFactory make_perf_host{make_linux_perf_host};  ///< and the host's counters.
  SharedCaches* caches{};  ///< Of vCPUs that run one at a time. May be null; must outlive the source.
};

}  // namespace vmm
