#pragma once
#include <linux/perf_event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "perf/core_pmus.hpp"
#include "perf/perf_host.hpp"

namespace vmm {

/// The event's attributes for the kernel. It is not pinned, so the kernel may multiplex it: a host that is short of
/// counters still counts a part of the time. On a hybrid host, `pmu` is the type of the PMU of the thread's cores.
perf_event_attr attributes_of(const PerfEventSpec& spec, std::optional<std::uint32_t> pmu = std::nullopt);

/// Opens events by perf_event_open. `pmus`: those of a hybrid host; empty on others.
std::unique_ptr<PerfHost> make_linux_perf_host(std::vector<CorePmu> pmus);

}  // namespace vmm
