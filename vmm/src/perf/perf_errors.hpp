#pragma once
#include "perf/perf_host.hpp"

namespace vmm {

/// Why perf_event_open failed with that errno, and what to do.
Error perf_open_error(int system_errno, const PerfEventSpec& spec);

/// Whether only this event has failed, and others may be available.
bool is_of_one_event(const Error& error);

}  // namespace vmm
