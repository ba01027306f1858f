#pragma once
#include <linux/perf_event.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kvm/fd.hpp"
#include "perf/core_pmus.hpp"
#include "perf/perf_host.hpp"

namespace vmm {

/// The event's attributes for the kernel. It is not pinned, so the kernel may multiplex it: a host that is short of
/// counters still counts a part of the time. On a hybrid host, `pmu` is the type of the PMU of the thread's cores.
perf_event_attr attributes_of(const PerfEventSpec& spec, std::optional<std::uint32_t> pmu = std::nullopt);

/// Opens an event of a thread, disabled and with `no_period`. Fails with perf_open_error().
using EventOpener = std::function<Result<Fd>(const PerfEventSpec& spec, pid_t thread)>;
/// Opens it by perf_event_open. `pmus`: those of a hybrid host; empty on others.
EventOpener linux_event_opener(std::vector<CorePmu> pmus = read_core_pmus());

/// Each thread's events are opened by `open`, which may be called on any of them.
PerfHostFactory linux_perf_hosts(EventOpener open);
std::unique_ptr<PerfHost> make_linux_perf_host_of(std::vector<CorePmu> pmus);

}  // namespace vmm
