#pragma once
#include <map>
#include <optional>
#include <span>
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

/// Reads "PERCENT" and "EVENT=PERCENT"; the last of each holds. Fails with kind usage unless it is 0 to a million.
Result<StatLimits> read_limits(const std::vector<std::string>& texts);

/// An event in both measurements, or in one.
struct ComparedEvent {
  std::string name;
  std::optional<StatCount> base{}, now{};
  std::string change;                  ///< For people: "+5 (+0.1 %)", "same", "new", "missing".
  std::optional<double> over_limit{};  ///< The limit in percent that it has risen above.
};

/// The result of comparing counts.
struct StatComparison {
  std::vector<std::string> notes;  ///< What else differs, each a sentence.
  std::vector<ComparedEvent> events;
  bool rose{};  ///< At least one count rose above its limit.
};

/// Lines for a terminal; a Markdown table; a document for programs.
std::string to_text(const StatComparison& comparison);
std::string to_markdown(const StatComparison& comparison);
std::string to_json(const StatComparison& comparison);

/// Fails with kind usage if the two cannot be compared: another machine or command. Looks only at what is known before
/// a run.
Result<void> check_comparable(const StatDocument& base, const StatDocument& now);

/// Fails with kind usage on a limit for an event that is not counted.
Result<void> check_limits(const StatLimits& limits, std::span<const StatEvent> events);

/// Compares what check_comparable() and check_limits() have accepted.
StatComparison compare(const StatDocument& base, const StatDocument& now, const StatLimits& limits);

}  // namespace vmm::tool
