#include "stat/comparison.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace vmm::tool {
namespace {

constexpr double highest_limit = 1e6;
constexpr std::size_t max_path = 4096;

Result<double> read_percent(std::string_view text) {
  double percent{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error == std::errc{} && end == text.data() + text.size() && percent >= 0 && percent <= highest_limit)
    return percent;
  return usage_error(fmt::format("the limit \"{}\" is not a percentage", printable(std::string{text})),
                     "give --limit PERCENT or --limit EVENT=PERCENT");
}

std::string change_of(std::uint64_t base, std::uint64_t now) {
  constexpr double whole = 100.0;
  if (base == now) return "same";
  const bool up = now > base;
  const std::uint64_t by = up ? now - base : base - now;
  std::string amount = fmt::format("{}{}", up ? '+' : '-', by);
  if (base == 0) return amount;
  const double percent = static_cast<double>(by) * whole / static_cast<double>(base);
  return fmt::format("{} ({}{:.3g} %)", amount, up ? '+' : '-', percent);
}

std::string change_of(const StatCount& base, const StatCount& now) {
  return base.value && now.value ? change_of(*base.value, *now.value) : std::string{};
}

bool rose_over(const StatCount& base, const StatCount& now, double limit) {
  constexpr double whole = 100.0;
  if (!base.value || !now.value || *now.value <= *base.value) return false;
  // Any rise is above a limit of 0; a double would round a small one away.
  if (limit == 0) return true;
  return static_cast<double>(*now.value - *base.value) * whole > limit * static_cast<double>(*base.value);
}

/// What a run is of, besides the machine.
struct Circumstance {
  const char* what;
  std::string base, now;
};

std::vector<Circumstance> circumstances(const StatDocument& base, const StatDocument& now) {
  return {{"kernel", base.kernel, now.kernel},
          {"size of memory", fmt::to_string(base.memory_bytes), fmt::to_string(now.memory_bytes)},
          {"command", fmt::format("{}", base.command), fmt::format("{}", now.command)}};
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

Result<void> check_same_machine(const StatDocument& base, const StatDocument& now) {
  VMM_TRY(same("model", base.model, now.model));
  VMM_TRY(same("accelerator", base.accel, now.accel));
  VMM_TRY(same("source", base.source, now.source));
  VMM_TRY(same("time", base.time, now.time));
  VMM_TRY(same("--set", base.set.empty() ? "none" : base.set, now.set.empty() ? "none" : now.set));
  return same("counter", base.counter, now.counter);
}

Result<void> check_comparable(const StatDocument& base, const StatDocument& now) {
  VMM_TRY(check_same_machine(base, now));
  for (const Circumstance& c : circumstances(base, now)) VMM_TRY(same(c.what, c.base, c.now));
  return {};
}

std::vector<std::string> other_circumstances(const StatDocument& base, const StatDocument& now) {
  std::vector<std::string> notes;
  for (const Circumstance& c : circumstances(base, now))
    if (c.base != c.now)
      notes.push_back(fmt::format("The base has another {}: {}, not {}.", c.what, printable(c.base, max_path),
                                  printable(c.now, max_path)));
  return notes;
}

Result<void> check_limits(const StatLimits& limits, std::span<const StatEvent> events) {
  for (const auto& [name, percent] : limits.of_event)
    if (std::ranges::find(events, name, &StatEvent::name) == events.end())
      return usage_error("--limit is for " + printable(name) + ", which is not counted", "name an event of -e");
  return {};
}

namespace {

/// Says of a few how they differ, and of the others how many they are.
void note_files(const StatDocument& base, const StatDocument& now, std::vector<std::string>& notes) {
  constexpr std::size_t most = 8;
  std::vector<std::string> all;
  for (const StatFile& file : now.files) {
    const auto old = std::ranges::find(base.files, file.path, &StatFile::path);
    if (old == base.files.end())
      all.push_back(fmt::format("{} was not opened in the base.", printable(file.path, max_path)));
    else if (*old != file)
      all.push_back(fmt::format("{} is another file than in the base: {} bytes, checksum {}, not {} and {}.",
                                printable(file.path, max_path), file.bytes, file.checksum, old->bytes,
                                printable(old->checksum)));
  }
  for (const StatFile& old : base.files)
    if (std::ranges::find(now.files, old.path, &StatFile::path) == now.files.end())
      all.push_back(fmt::format("{} was opened in the base only.", printable(old.path, max_path)));
  const std::size_t shown = std::min(most, all.size());
  notes.insert(notes.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown));
  if (shown < all.size()) notes.push_back(fmt::format("So do {} more files.", all.size() - shown));
}

std::uint64_t difference(const ComparedFunction& f) { return f.base > f.now ? f.base - f.now : f.now - f.base; }

/// A function is the same if its file has the same name, wherever that is: a program is built in another directory.
std::vector<ComparedFunction> compare_functions(const StatDocument& base, const StatDocument& now) {
  using Key = std::pair<std::string, std::string>;
  struct Both {
    std::string file;
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> counts;
  };
  std::map<Key, Both> all;
  const auto add = [&all](const StatDocument& of, auto member) {
    for (const StatFunction& function : of.functions) {
      Both& both = all[{function.file.substr(function.file.rfind('/') + 1), function.name}];
      both.file = function.file;
      for (const auto& [event, count] : function.counts) both.counts[event].*member += count;
    }
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  add(base, &Pair::first);
  add(now, &Pair::second);
  std::vector<ComparedFunction> changed;
  for (const StatCount& event : now.events) {
    const auto begin = static_cast<std::ptrdiff_t>(changed.size());
    for (const auto& [key, both] : all)
      if (const auto count = both.counts.find(event.name);
          count != both.counts.end() && count->second.first != count->second.second)
        changed.push_back({.event = event.name,
                           .function = key.second,
                           .file = both.file,
                           .base = count->second.first,
                           .now = count->second.second});
    std::stable_sort(changed.begin() + begin, changed.end(),
                     [](const auto& a, const auto& b) { return difference(a) > difference(b); });
  }
  return changed;
}

}  // namespace

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
  // What was given is said before what was counted.
  if (!base.files.empty() && !now.files.empty()) note_files(base, now, notes);
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
  if (!base.functions.empty() && !now.functions.empty()) comparison.functions = compare_functions(base, now);
  return comparison;
}

namespace {

std::string value_of(const std::optional<StatCount>& count) { return count ? tool::value_of(*count) : std::string{}; }

std::string verdict_of(const ComparedEvent& event) {
  return event.over_limit ? fmt::format(", over the limit of {} %", *event.over_limit) : std::string{};
}

/// Calls `event(name)` for each that has functions, `function(one, name)` for those that changed most, and `others(how
/// many, change)` for the rest.
void each_function(const StatComparison& comparison, auto event, auto function, auto others) {
  const auto& all = comparison.functions;
  for (std::size_t begin = 0; begin < all.size();) {
    event(printable(all[begin].event));
    std::size_t end = begin;
    std::uint64_t base = 0, now = 0;
    for (; end < all.size() && all[end].event == all[begin].event; ++end) {
      if (end - begin < most_functions) {
        function(all[end], printable(all[end].function, max_path));
        continue;
      }
      base += all[end].base;
      now += all[end].now;
    }
    if (end - begin > most_functions) others(fmt::format("{} more", end - begin - most_functions), base, now);
    begin = end;
  }
}

/// As much of a name as a line may have: C++'s are long.
std::string shortened(const std::string& name) {
  constexpr std::size_t most = 60, kept = 57;
  return name.size() <= most ? name : name.substr(0, kept) + "...";
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
  const auto add_function = [&text](const std::string& name, std::uint64_t base, std::uint64_t now) {
    text += fmt::format(" {:>18} {:>18}  {:<28}  {}\n", base, now, change_of(base, now), name);
  };
  each_function(
      comparison,
      [&text](const std::string& event) { text += fmt::format("\n {}, by function: base, now, change\n", event); },
      [&](const ComparedFunction& f, const std::string& name) {
        add_function(fmt::format("{}  {}", shortened(name), printable(f.file, max_path)), f.base, f.now);
      },
      add_function);
  return text;
}

std::string to_markdown(const StatComparison& comparison) {
  // A pipe would end a cell, and a name in C++ may look like HTML.
  const auto cell = [](const std::string& text) {
    std::string safe;
    for (const char c : text) {
      if (std::string_view{"|<>*_`"}.find(c) != std::string_view::npos) safe += '\\';
      safe += c;
    }
    return safe;
  };
  std::string text;
  for (const std::string& note : comparison.notes) text += fmt::format("- {}\n", cell(note));
  if (!text.empty()) text += '\n';
  text += "| event | base | now | change |\n|---|---:|---:|---|\n";
  for (const ComparedEvent& event : comparison.events)
    text += fmt::format("| {} | {} | {} | {}{}{}{} |\n", cell(printable(event.name)), value_of(event.base),
                        value_of(event.now), event.over_limit ? "**" : "", event.change, verdict_of(event),
                        event.over_limit ? "**" : "");
  const auto add_function = [&text](const std::string& name, std::uint64_t base, std::uint64_t now) {
    text += fmt::format("| {} | {} | {} | {} |\n", name, base, now, change_of(base, now));
  };
  each_function(
      comparison,
      [&](const std::string& event) {
        text += fmt::format("\n| {}, by function | base | now | change |\n|---|---:|---:|---|\n", cell(event));
      },
      [&](const ComparedFunction& f, const std::string& name) {
        add_function(fmt::format("{} ({})", cell(shortened(name)), cell(printable(f.file, max_path))), f.base, f.now);
      },
      add_function);
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
  Json json = {{"rose", comparison.rose}, {"notes", comparison.notes}, {"events", std::move(events)}};
  for (const ComparedFunction& f : comparison.functions)
    json["functions"].push_back(
        {{"event", f.event}, {"function", f.function}, {"file", f.file}, {"base", f.base}, {"now", f.now}});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace vmm::tool
