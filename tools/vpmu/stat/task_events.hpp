#pragma once
#include <optional>
#include <string_view>

#include "pmu/task_counts.hpp"
#include "vpmu/event.hpp"

namespace vmm::tool {

/// An event of perf's as the VMM counts it beside the guest's PMU; `modifier` is perf's. Empty: it has a meaning only
/// with PEBS, or the modifier is another than `u`, `k`, `p` and `P`.
std::optional<TaskEvent> task_event(const vpmu::EventDesc& event, std::string_view modifier);

}  // namespace vmm::tool
