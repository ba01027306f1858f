#pragma once
#include <span>
#include <string>
#include <vector>

#include "stat/counts.hpp"
#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {

/// What --topdown stands for.
inline constexpr std::string_view topdown_metrics = "TopdownL1";

/// The metrics of a list with commas, by perf's names in either case: IPC, CPI, and from Sandy Bridge on TopdownL1 or
/// the four that it stands for. Fails with kind usage on another name.
Result<std::vector<std::string>> choose_metrics(std::string_view list, const vpmu::GenerationDesc& generation);

/// The events that they need, as names of events, without those that are there already.
std::vector<std::string> events_of(std::span<const std::string> metrics, std::span<const std::string> there);

/// The metrics of such counts. They have no values where a cycle is an instruction.
std::vector<StatMetric> compute_metrics(std::span<const std::string> metrics, const StatDocument& document);

}  // namespace vmm::tool
