#pragma once
#include <linux/perf_event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "perf/core_pmus.hpp"
#include "perf/perf_host.hpp"

namespace vmm {

/// What the kernel is asked for. The event may take turns with others (it is not pinned): a host that is short of
/// counters then still counts a part of the time. `pmu` is the type of the PMU of the thread's cores, on a hybrid host.
perf_event_attr attributes_of(const PerfEventSpec& spec, std::optional<std::uint32_t> pmu = std::nullopt);

/// perf_event_open of a host with these PMUs, where it is a hybrid one.
std::unique_ptr<PerfHost> make_linux_perf_host(std::vector<CorePmu> pmus);

}  // namespace vmm
