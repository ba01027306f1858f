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

/// A function that has counted another number of an event than before.
struct ComparedFunction {
  std::string event, function, file;
  std::uint64_t base{}, now{};
};

/// The result of comparing counts.
struct StatComparison {
  std::vector<std::string> notes;  ///< What else differs, each a sentence.
  std::vector<ComparedEvent> events;
  /// Of measurements that both have functions: by the order of the events, and those that changed most first.
  std::vector<ComparedFunction> functions{};
  bool rose{};  ///< At least one count rose above its limit.
};

/// Lines for a terminal; a Markdown table; a document for programs.
std::string to_text(const StatComparison& comparison);
std::string to_markdown(const StatComparison& comparison);
std::string to_json(const StatComparison& comparison);

/// Of an event, at most so many functions are in the texts.
inline constexpr std::size_t most_functions = 12;

/// Fails with kind usage if the two cannot be compared: they are of another machine.
Result<void> check_same_machine(const StatDocument& base, const StatDocument& now);

/// The same, or if the kernel, the memory or the command is another. Looks only at what is known before a run.
Result<void> check_comparable(const StatDocument& base, const StatDocument& now);

/// The same as sentences for StatComparison::notes, if two builds of a program are compared, or two kernels.
std::vector<std::string> other_circumstances(const StatDocument& base, const StatDocument& now);

/// Fails with kind usage on a limit for an event that is not counted.
Result<void> check_limits(const StatLimits& limits, std::span<const StatEvent> events);

/// Compares what check_same_machine() and check_limits() have accepted.
StatComparison compare(const StatDocument& base, const StatDocument& now, const StatLimits& limits);

}  // namespace vmm::tool
