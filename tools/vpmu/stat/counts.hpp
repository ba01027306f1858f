#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stat/events.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// The count of one event.
struct StatCount {
  std::string name, quality, unit;
  /// Empty: the source cannot count the event, and its counter stays at 0.
  std::optional<std::uint64_t> value{};
  std::uint64_t running_ns{}, enabled_ns{};  ///< Of the guest's time. Running < enabled: the event was multiplexed.
  double deviation{};  ///< Of several runs: the standard deviation of their mean, in percent of it.
  bool operator==(const StatCount&) const = default;
};

/// As perf says it in place of a number.
inline constexpr std::string_view not_counted = "<not counted>";

/// What was counted in a region that the program has marked (vpmu_regions.h, or Callgrind's client requests).
struct StatRegion {
  std::string label;
  std::uint64_t times{};
  std::vector<StatCount> events;
  bool operator==(const StatRegion&) const = default;
};

/// What a function has counted: only its own code, without what it calls.
struct StatFunction {
  std::string name, file;
  std::map<std::string, std::uint64_t> counts{};  ///< By the events' names; those that are not 0.
  bool operator==(const StatFunction&) const = default;
};

/// A file that the command was given.
struct StatFile {
  std::string path;
  std::uint64_t bytes{};
  std::string checksum{};  ///< Of what is in it; empty if that was not read.
  bool operator==(const StatFile&) const = default;
};

/// What follows from counts: "IPC".
struct StatMetric {
  std::string name, unit;
  std::optional<double> value{};  ///< Empty: the source cannot count what it follows from.
  bool operator==(const StatMetric&) const = default;
};

/// The number, or not_counted.
std::string value_of(const StatCount& count);
std::string value_of(const StatMetric& metric);

/// Parses what `perf stat -x '\t'` writes for these events, in their order. Fails with kind host on anything else.
Result<std::vector<StatCount>> read_perf_counts(std::string_view text, std::span<const StatEvent> events);

/// What the VMM has counted of these events, each of which it can count. `tsc_khz` is the guest's.
std::vector<StatCount> counts_of(const TaskTotals& totals, std::span<const StatEvent> events, std::uint64_t tsc_khz);

/// The same of each region, without what the guest's kernel counts.
std::vector<StatRegion> regions_of(const TaskTotals& totals, std::span<const StatEvent> events);

/// The mean of one run or more, which have the same events.
std::vector<StatCount> mean_of(std::span<const std::vector<StatCount>> runs);

/// A measurement, as the JSON document holds it.
struct StatDocument {
  static constexpr std::int64_t format = 1;
  std::string version, model, accel, source, kernel;
  std::string time{"instructions"};  ///< As --time has it.
  std::string set{};                 ///< What --set has changed of the model, as ProfileChanges::text().
  std::string counter{"perf"};       ///< Who counted: "vmm", or "perf" in the guest.
  std::uint64_t memory_bytes{};      ///< Of the guest.
  std::string environment;           ///< A checksum of the command's environment.
  std::vector<std::string> command;
  int exit_code{};
  unsigned runs{1};  ///< That `events` is the mean of.
  std::vector<StatCount> events;
  std::vector<StatMetric> metrics{};
  std::vector<StatRegion> regions{};      ///< Of the last run.
  std::vector<StatFunction> functions{};  ///< The same; empty without --record.
  std::vector<StatFile> files{};          ///< The same.
  std::uint64_t lost_files{};             ///< Names of files that could not be read or resolved.
  bool operator==(const StatDocument&) const = default;
};

/// The longest that is read.
inline constexpr std::size_t max_document_bytes = std::size_t{1} << 28U;

/// Equal numbers give equal bytes. Ends with a newline.
std::string to_json(const StatDocument& document);

/// Fails with kind usage on what to_json() does not write; `path` is for the message.
Result<StatDocument> read_stat_document(std::string_view text, const std::string& path);

/// The same of a file.
Result<StatDocument> read_measurement(const std::string& path);

}  // namespace vmm::tool
