#include "stat/counts.hpp"

#include <algorithm>
#include <charconv>

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
  // A software event of time has decimals, and is not a count.
  const std::string_view digits = count.unit.empty() ? fields[value] : fields[value].substr(0, fields[value].find('.'));
  if (!read_number(digits, count.value.emplace()) || !read_number(fields[running], count.running_ns) ||
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

std::string value_of(const StatCount& count) {
  return count.value ? fmt::to_string(*count.value) : std::string{not_counted};
}

std::string to_table(const StatDocument& document) {
  std::size_t widest = 0;
  for (const StatCount& count : document.events) widest = std::max(widest, count.name.size());
  std::string text =
      fmt::format("\n {}{}{}, source {}, {} kernel {}:\n\n", document.model, document.set.empty() ? "" : " with ",
                  document.set, document.source, document.accel, document.kernel);
  for (const StatCount& count : document.events)
    text += fmt::format("{:>20}  {:<{}}  {}\n",
                        fmt::format("{}{}{}", value_of(count), count.unit.empty() ? "" : " ", count.unit), count.name,
                        widest, count.quality);
  return text + '\n';
}

}  // namespace vmm::tool
