#include "stat/formats.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace vmm::tool {
namespace {

constexpr double whole = 100;

std::string with_unit(const std::string& value, const std::string& unit) {
  return fmt::format("{}{}{}", value, value.empty() || unit.empty() ? "" : " ", unit);
}

/// How many percent of the time it was counted.
double share_of(const StatCount& count) {
  if (count.enabled_ns == count.running_ns) return whole;
  return whole * static_cast<double>(count.running_ns) / static_cast<double>(count.enabled_ns);
}

/// Labels and events in columns; empty without regions.
std::string regions_table(const StatDocument& document) {
  if (document.regions.empty()) return {};
  std::string text = fmt::format(" {:>12}", "times");
  for (const StatCount& count : document.regions.front().events)
    text += fmt::format(" {:>{}}", count.name, std::max<std::size_t>(count.name.size(), 14));
  text += "  region\n";
  for (const StatRegion& region : document.regions) {
    text += fmt::format(" {:>12}", region.times);
    for (const StatCount& count : region.events)
      text += fmt::format(" {:>{}}", value_of(count), std::max<std::size_t>(count.name.size(), 14));
    text += fmt::format("  {}\n", region.label.empty() ? "(no label)" : printable(region.label));
  }
  return text + '\n';
}

}  // namespace

std::string value_of(const StatCount& count) {
  return count.value ? fmt::to_string(*count.value) : std::string{not_counted};
}

std::string value_of(const StatMetric& metric) {
  return metric.value ? fmt::format("{:.2f}", *metric.value) : std::string{not_counted};
}

std::string to_table(const StatDocument& document) {
  std::size_t widest = 0;
  for (const StatCount& count : document.events) widest = std::max(widest, count.name.size());
  for (const StatMetric& metric : document.metrics) widest = std::max(widest, metric.name.size());
  std::string text = fmt::format("\n {}{}{}, source {}, {} kernel {}{}:\n\n", document.model,
                                 document.set.empty() ? "" : " with ", document.set, document.source, document.accel,
                                 document.kernel, document.runs > 1 ? fmt::format(", {} runs", document.runs) : "");
  for (const StatCount& count : document.events)
    text += fmt::format("{:>20}  {:<{}}  {}{}\n", with_unit(value_of(count), count.unit), count.name, widest,
                        document.runs > 1 ? fmt::format("( +-{:6.2f}% )  ", count.deviation) : "", count.quality);
  if (!document.metrics.empty()) text += '\n';
  for (const StatMetric& metric : document.metrics)
    text += fmt::format("{:>20}  {}\n", with_unit(value_of(metric), metric.unit), metric.name);
  return text + '\n' + regions_table(document);
}

std::string to_fields(const StatDocument& document, const std::string& separator) {
  const auto line = [&separator](const std::vector<std::string>& fields) {
    return fmt::format("{}\n", fmt::join(fields, separator));
  };
  std::string text;
  for (const StatCount& count : document.events) {
    std::vector<std::string> fields{value_of(count), count.unit, count.name};
    if (document.runs > 1) fields.push_back(fmt::format("{:.2f}%", count.deviation));
    fields.insert(fields.end(), {fmt::to_string(count.running_ns), fmt::format("{:.2f}", share_of(count)), "", ""});
    text += line(fields);
  }
  for (const StatMetric& metric : document.metrics)
    text += line({"", "", "", "", "", value_of(metric), with_unit(metric.unit, metric.name)});
  return text;
}

std::string to_json_lines(const StatDocument& document) {
  using Json = nlohmann::ordered_json;
  std::string text;
  const auto add = [&text](const Json& line) {
    text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  };
  for (const StatCount& count : document.events) {
    Json line = {{"counter-value", value_of(count)}, {"unit", count.unit}, {"event", count.name}};
    if (document.runs > 1) line["variance"] = count.deviation;
    line["event-runtime"] = count.running_ns;
    line["pcnt-running"] = share_of(count);
    add(line);
  }
  for (const StatMetric& metric : document.metrics)
    add({{"metric-value", value_of(metric)}, {"metric-unit", with_unit(metric.unit, metric.name)}});
  return text;
}

}  // namespace vmm::tool
