#include "stat/comparison.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace vmm::tool {
namespace {

constexpr double highest_limit = 1e6;

Result<double> read_percent(std::string_view text) {
  double percent{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error == std::errc{} && end == text.data() + text.size() && percent >= 0 && percent <= highest_limit)
    return percent;
  return usage_error(fmt::format("the limit \"{}\" is not a percentage", printable(std::string{text})),
                     "give --limit PERCENT or --limit EVENT=PERCENT");
}

std::string change_of(const StatCount& base, const StatCount& now) {
  constexpr double whole = 100.0;
  if (!base.value || !now.value) return "";
  if (*base.value == *now.value) return "same";
  const bool up = *now.value > *base.value;
  const std::uint64_t by = up ? *now.value - *base.value : *base.value - *now.value;
  std::string amount = fmt::format("{}{}", up ? '+' : '-', by);
  if (*base.value == 0) return amount;
  const double percent = static_cast<double>(by) * whole / static_cast<double>(*base.value);
  return fmt::format("{} ({}{:.3g} %)", amount, up ? '+' : '-', percent);
}

bool rose_over(const StatCount& base, const StatCount& now, double limit) {
  constexpr double whole = 100.0;
  if (!base.value || !now.value || *now.value <= *base.value) return false;
  // Any rise is above a limit of 0; a double would round a small one away.
  if (limit == 0) return true;
  return static_cast<double>(*now.value - *base.value) * whole > limit * static_cast<double>(*base.value);
}

Result<void> same(const char* what, const std::string& base, const std::string& now) {
  if (base == now) return {};
  constexpr std::size_t max = 200;
  return usage_error(fmt::format("the base has another {}: {}, not {}", what, printable(base.substr(0, max)),
                                 printable(now.substr(0, max))),
                     "make a new base with --json");
}

}  // namespace

Result<StatLimits> read_limits(const std::vector<std::string>& texts) {
  StatLimits limits;
  for (const std::string& text : texts) {
    // The last one: the event's name may contain one, as in cpu/event=0xc0/u=1.5
    const std::size_t equals = text.rfind('=');
    if (equals == std::string::npos) {
      VMM_ASSIGN(limits.percent, read_percent(text));
    } else {
      VMM_ASSIGN(limits.of_event[text.substr(0, equals)], read_percent(std::string_view{text}.substr(equals + 1)));
    }
  }
  return limits;
}

Result<void> check_comparable(const StatDocument& base, const StatDocument& now) {
  VMM_TRY(same("model", base.model, now.model));
  VMM_TRY(same("accelerator", base.accel, now.accel));
  VMM_TRY(same("source", base.source, now.source));
  VMM_TRY(same("time", base.time, now.time));
  VMM_TRY(same("--set", base.set.empty() ? "none" : base.set, now.set.empty() ? "none" : now.set));
  VMM_TRY(same("counter", base.counter, now.counter));
  VMM_TRY(same("kernel", base.kernel, now.kernel));
  VMM_TRY(same("size of memory", fmt::to_string(base.memory_bytes), fmt::to_string(now.memory_bytes)));
  if (base.command != now.command)
    return same("command", fmt::format("{}", base.command), fmt::format("{}", now.command));
  return {};
}

Result<void> check_limits(const StatLimits& limits, std::span<const StatEvent> events) {
  for (const auto& [name, percent] : limits.of_event)
    if (std::ranges::find(events, name, &StatEvent::name) == events.end())
      return usage_error("--limit is for " + printable(name) + ", which is not counted", "name an event of -e");
  return {};
}

StatComparison compare(const StatDocument& base, const StatDocument& now, const StatLimits& limits) {
  StatComparison comparison;
  std::vector<std::string>& notes = comparison.notes;
  if (base.version != now.version)
    notes.push_back(fmt::format("The base was made by vpmu {}, this by {}.", printable(base.version), now.version));
  if (base.environment != now.environment)
    notes.emplace_back(
        "The base was made in another environment: PATH, HOME, LANG, TZ, LC_* or a variable of --env differs.");
  const bool same_events = std::ranges::equal(base.events, now.events, {}, &StatCount::name, &StatCount::name);
  if (now.counter == "perf" && !same_events)
    notes.emplace_back("The base has other events. What perf itself does for them is in the kernel's counts, too.");
  if (base.exit_code != now.exit_code)
    notes.push_back(fmt::format("The command ended with {} in the base, now with {}.", base.exit_code, now.exit_code));
  for (const StatCount& count : now.events) {
    ComparedEvent& event =
        comparison.events.emplace_back(ComparedEvent{.name = count.name, .now = count, .change = "new"});
    const auto old = std::ranges::find(base.events, count.name, &StatCount::name);
    if (old == base.events.end()) continue;
    const auto own = limits.of_event.find(count.name);
    const double limit = own == limits.of_event.end() ? limits.percent : own->second;
    event.base = *old;
    event.change = change_of(*old, count);
    if (rose_over(*old, count, limit)) event.over_limit = limit;
    comparison.rose = comparison.rose || event.over_limit;
  }
  for (const StatCount& old : base.events)
    if (std::ranges::find(now.events, old.name, &StatCount::name) == now.events.end())
      comparison.events.push_back({.name = old.name, .base = old, .change = "missing"});
  return comparison;
}

namespace {

std::string value_of(const std::optional<StatCount>& count) { return count ? tool::value_of(*count) : std::string{}; }

std::string verdict_of(const ComparedEvent& event) {
  return event.over_limit ? fmt::format(", over the limit of {} %", *event.over_limit) : std::string{};
}

}  // namespace

std::string to_text(const StatComparison& comparison) {
  std::string text;
  for (const std::string& note : comparison.notes) text += fmt::format(" {}\n", note);
  const auto add = [&text](const std::string& name, const std::string& base, const std::string& now,
                           const std::string& change) {
    text += fmt::format(" {:<28} {:>18} {:>18}  {}\n", name, base, now, change);
  };
  add("event", "base", "now", "change");
  for (const ComparedEvent& event : comparison.events)
    add(printable(event.name), value_of(event.base), value_of(event.now), event.change + verdict_of(event));
  return text;
}

std::string to_markdown(const StatComparison& comparison) {
  // A pipe would end a cell.
  const auto name_of = [](const ComparedEvent& event) {
    std::string name = printable(event.name);
    for (std::size_t at = 0; (at = name.find('|', at)) != std::string::npos; at += 2) name.insert(at, 1, '\\');
    return name;
  };
  std::string text = "| event | base | now | change |\n|---|---:|---:|---|\n";
  for (const ComparedEvent& event : comparison.events)
    text += fmt::format("| {} | {} | {} | {}{}{}{} |\n", name_of(event), value_of(event.base), value_of(event.now),
                        event.over_limit ? "**" : "", event.change, verdict_of(event), event.over_limit ? "**" : "");
  for (const std::string& note : comparison.notes) text += fmt::format("\n{}\n", note);
  return text;
}

std::string to_json(const StatComparison& comparison) {
  using Json = nlohmann::ordered_json;
  const auto number = [](const std::optional<StatCount>& count) {
    return count ? (count->value ? Json(*count->value) : Json(not_counted)) : Json();
  };
  Json events = Json::array();
  for (const ComparedEvent& event : comparison.events)
    events.push_back({{"name", event.name},
                      {"base", number(event.base)},
                      {"now", number(event.now)},
                      {"change", event.change},
                      {"over_limit_percent", event.over_limit ? Json(*event.over_limit) : Json()}});
  const Json json = {{"rose", comparison.rose}, {"notes", comparison.notes}, {"events", std::move(events)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace vmm::tool
