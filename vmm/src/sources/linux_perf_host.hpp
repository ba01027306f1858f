#pragma once
#include <linux/perf_event.h>

#include "sources/perf_host.hpp"

namespace vmm {

/// What the kernel is asked for. The event may take turns with others (it is not pinned): a host that is short of
/// counters then still counts a part of the time.
perf_event_attr attributes_of(const PerfEventSpec& spec);

}  // namespace vmm
