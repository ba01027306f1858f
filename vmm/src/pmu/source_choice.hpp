#pragma once
#include <string>
#include <string_view>

#include "perf/perf_host.hpp"

namespace vmm {

/// Which source counts where the user left that open, and why.
struct SourceChoice {
  std::string_view name;  ///< Of the registry.
  std::string why;        ///< One line for people: why this one, and why not the others.
};

/// Picks by what the host has: its PMU where that passes calibration (perf_calibration.hpp), else the clock. `host` is
/// null where the guest does not run on the host's processor: there the engine runs it anyway, and counts. Never fails.
SourceChoice choose_source(PerfHost* host);
/// The same with this host's counters, for a guest that runs on KVM or not.
SourceChoice choose_source(bool on_kvm);

}  // namespace vmm
