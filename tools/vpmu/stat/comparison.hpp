#pragma once
#include <map>
#include <string>
#include <vector>

#include "stat/counts.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// By how many percent a count may rise.
struct StatLimits {
  double percent{};
  std::map<std::string, double, std::less<>> of_event;
};

/// Of "PERCENT" and "EVENT=PERCENT", the last of each. Fails with kind usage on what is no number from 0 to a million.
Result<StatLimits> read_limits(const std::vector<std::string>& texts);

/// What has become of the counts.
struct StatComparison {
  std::string report;  ///< Lines: of each event base, now and the change.
  bool rose{};         ///< One by more than its limit.
};

/// Fails with kind usage where the two cannot be compared: what differs, but the counts; and on a limit for an event
/// that neither has.
Result<StatComparison> compare(const StatDocument& base, const StatDocument& now, const StatLimits& limits);

/// The same, before anything is run: all but the counts.
Result<void> check_comparable(const StatDocument& base, const StatDocument& now);

}  // namespace vmm::tool
