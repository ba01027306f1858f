#pragma once
#include <string>
#include <string_view>

#include "perf/perf_host.hpp"

namespace vmm {

/// The counting source chosen when the user names none, and why.
struct SourceChoice {
  std::string_view name;  ///< Its name in the registry.
  std::string why;        ///< One line for people: why this one, and why not the others.
};

/// Chooses by what the host has: its PMU if that passes calibration (perf_calibration.hpp), else the clock. `host` is
/// null if the guest does not run on the host's processor: then the engine runs it anyway, and counts. Never fails.
SourceChoice choose_source(PerfHost* host);
/// The same with this host's counters; `on_kvm`: whether the guest runs on KVM.
SourceChoice choose_source(bool on_kvm);

}  // namespace vmm
