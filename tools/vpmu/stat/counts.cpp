#include "stat/counts.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace vmm::tool {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(at, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

Failure unreadable(std::string_view line) {
  return host_error(
      fmt::format("cannot read the line \"{}\" that perf stat wrote", printable(std::string{line.substr(0, 200)})));
}

/// A count, or a time in milliseconds with decimals, of which we keep nanoseconds.
bool read_value(std::string_view text, StatCount& count) {
  if (count.unit != "msec") return read_number(text, count.value.emplace());
  constexpr double ns_in_ms = 1e6, longest = 1e12;
  double ms{};
  const bool is_time = read_number(text, ms) && ms >= 0 && ms < longest;
  if (is_time) count.value = static_cast<std::uint64_t>(std::llround(ms * ns_in_ms));
  count.unit = "ns";
  return is_time;
}

/// value, unit, event, running time, and its share of the enabled time in percent; then perf's own metrics.
Result<StatCount> read_line(std::string_view line, const StatEvent& event) {
  constexpr std::size_t value = 0, unit = 1, running = 3, share = 4;
  constexpr double whole = 100.0;
  const auto fields = split(line, '\t');
  if (fields.size() <= share) return unreadable(line);
  if (fields[value].starts_with('<'))
    return host_error(fmt::format("{} was not counted: {}", event.name, printable(std::string{fields[value]})), 0,
                      "leave it out, or look for it in `vpmu events`");
  StatCount count{.name = event.name, .quality = event.quality, .unit = std::string{fields[unit]}};
  double percent{};
  if (!read_value(fields[value], count) || !read_number(fields[running], count.running_ns) ||
      !read_number(fields[share], percent) || count.running_ns > 1ULL << 62U)
    return unreadable(line);
  // Written so that a NaN is refused, too.
  const bool is_share = percent >= 0 && percent <= whole;
  if (!is_share) return unreadable(line);
  if (!is_delivered(event.quality)) count.value.reset();
  count.enabled_ns = count.running_ns;
  if (percent < whole && percent > 0)
    count.enabled_ns = static_cast<std::uint64_t>(static_cast<double>(count.running_ns) * whole / percent);
  if (percent < whole && count.value) count.quality = fmt::format("not exact: counted {} % of the time", percent);
  return count;
}

}  // namespace

Result<std::vector<StatCount>> read_perf_counts(std::string_view text, std::span<const StatEvent> events) {
  std::vector<StatCount> counts;
  for (const std::string_view line : split(text, '\n')) {
    // perf begins with a line about the date.
    if (line.empty() || line.starts_with('#')) continue;
    if (counts.size() == events.size()) return unreadable(line);
    VMM_ASSIGN(auto count, read_line(line, events[counts.size()]));
    counts.push_back(std::move(count));
  }
  if (counts.size() != events.size())
    return host_error(fmt::format("perf counted {} of {} events", counts.size(), events.size()), 0,
                      "see perf's messages");
  return counts;
}

std::vector<StatCount> counts_of(const TaskTotals& totals, std::span<const StatEvent> events, std::uint64_t tsc_khz) {
  std::vector<StatCount> counts;
  std::size_t next = 0;
  constexpr std::uint64_t ns_in_ms = 1'000'000;
  const std::uint64_t ms = totals.ticks / tsc_khz, ns = ms * ns_in_ms + totals.ticks % tsc_khz * ns_in_ms / tsc_khz;
  for (const StatEvent& event : events) {
    StatCount& count = counts.emplace_back(StatCount{.name = event.name, .quality = event.quality, .unit = {}});
    if (const auto* const software = std::get_if<SoftwareEvent>(&event.beside)) {
      switch (*software) {
        case SoftwareEvent::context_switches: count.value = totals.switches; break;
        case SoftwareEvent::cpu_migrations: count.value = totals.migrations; break;
        case SoftwareEvent::task_clock:
          count.value = ns;
          count.unit = "ns";
          break;
      }
      count.quality = "exact";
    } else {
      const std::uint64_t value = totals.events.at(next++);
      if (is_delivered(event.quality)) count.value = value;
    }
    count.running_ns = count.enabled_ns = ns;
  }
  return counts;
}

std::vector<StatRegion> regions_of(const TaskTotals& totals, std::span<const StatEvent> events) {
  std::vector<StatRegion> regions;
  for (const TaskRegion& region : totals.regions) {
    StatRegion& one = regions.emplace_back(StatRegion{.label = region.label, .times = region.times, .events = {}});
    std::size_t next = 0;
    for (const StatEvent& event : events) {
      if (!std::holds_alternative<TaskEvent>(event.beside)) continue;
      StatCount& count = one.events.emplace_back(StatCount{.name = event.name, .quality = event.quality, .unit = {}});
      if (is_delivered(event.quality)) count.value = region.events.at(next);
      ++next;
    }
  }
  return regions;
}

std::vector<StatCount> mean_of(std::span<const std::vector<StatCount>> runs) {
  constexpr double whole = 100;
  std::vector<StatCount> mean = runs.front();
  const auto n = static_cast<double>(runs.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0, squares = 0;
    for (const auto& run : runs) sum += static_cast<double>(run[i].value.value_or(0));
    for (const auto& run : runs) {
      const double difference = static_cast<double>(run[i].value.value_or(0)) - sum / n;
      squares += difference * difference;
    }
    if (runs.size() == 1 || !mean[i].value) continue;
    mean[i].value = static_cast<std::uint64_t>(std::llround(sum / n));
    if (sum != 0) mean[i].deviation = whole * std::sqrt(squares / (n - 1) / n) / (sum / n);
  }
  return mean;
}

}  // namespace vmm::tool
