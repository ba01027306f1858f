#pragma once
#include <string>

#include "vpmu/event.hpp"

namespace vmm::tool {

/// PERFEVTSEL of an event as perf's raw event: "r00c0" for umask 00H, event C0H. A fixed counter's row gives "fixed 0".
std::string raw_encoding(const vpmu::EventDesc& event);

/// What to give to `perf -e` in a Linux guest, the extra MSR included: "cpu/event=0xcd,umask=0x1,ldlat=0x80/p". An
/// event that has a meaning only with PEBS carries the `p`.
std::string perf_syntax(const vpmu::EventDesc& event);

/// The counters of an event: "0-3", "1", "0,2,3", "fixed 0".
std::string counter_list(const vpmu::EventDesc& event);

}  // namespace vmm::tool
