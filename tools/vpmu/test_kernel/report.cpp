#include "test_kernel/report.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace vmm::tool {
namespace {

/// The names of all checks of all models, in the order of their first appearance.
std::vector<std::string> columns_of(const KernelReport& report) {
  std::vector<std::string> names;
  for (const ModelResult& model : report.models)
    for (const CheckResult& check : model.checks)
      if (std::ranges::find(names, check.name) == names.end()) names.push_back(check.name);
  return names;
}

/// The two lines of a column's head: "precise" over "2".
std::pair<std::string, std::string> head_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  return dot == std::string::npos ? std::pair{std::string{}, name}
                                  : std::pair{name.substr(0, dot), name.substr(dot + 1)};
}

const CheckResult* find_check(const ModelResult& model, const std::string& name) {
  const auto check = std::ranges::find(model.checks, name, &CheckResult::name);
  return check == model.checks.end() ? nullptr : &*check;
}

std::string cell_of(const CheckResult* check) {
  if (check == nullptr) return "?";
  switch (check->outcome) {
    case Outcome::pass: return "ok";
    case Outcome::fail: return "FAIL";
    case Outcome::skip: break;
  }
  return "-";
}

/// The text without trailing blanks.
std::string line_of(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

/// The text for YAML, between double quotes.
std::string in_quotes(std::string_view text) {
  std::string out{'"'};
  for (const char character : clean_text(text)) {
    if (character == '"' || character == '\\') out += '\\';
    out += character;
  }
  return out + '"';
}

/// The text for a TAP test's name or directive, where "#" has a meaning.
std::string tap_text(std::string_view text) {
  std::string out;
  for (const char character : clean_text(text)) {
    if (character == '#' || character == '\\') out += '\\';
    out += character;
  }
  return out;
}

Change::Kind kind_of(Outcome before, Outcome now) {
  if (before != Outcome::fail && now == Outcome::fail) return Change::Kind::worse;
  return before == Outcome::fail && now != Outcome::fail ? Change::Kind::better : Change::Kind::other;
}

void compare(const ModelResult& before, const ModelResult& now, std::vector<Change>& all) {
  for (const CheckResult& check : now.checks) {
    const CheckResult* const old = find_check(before, check.name);
    const std::string details = fmt::format("expected {}, seen {}", check.expected, check.seen);
    if (old == nullptr) {
      const auto kind = check.outcome == Outcome::fail ? Change::Kind::worse : Change::Kind::other;
      all.push_back(
          {now.model, check.name, kind, fmt::format("not there, now {}: {}", name_of(check.outcome), details)});
    } else if (old->outcome != check.outcome) {
      all.push_back({now.model, check.name, kind_of(old->outcome, check.outcome),
                     fmt::format("{}, now {}: {}", name_of(old->outcome), name_of(check.outcome), details)});
    } else if (check.outcome == Outcome::fail && old->seen != check.seen) {
      all.push_back({now.model, check.name, Change::Kind::other,
                     fmt::format("fails otherwise: {}; it was {}", details, old->seen)});
    }
  }
  for (const CheckResult& check : before.checks)
    if (find_check(now, check.name) == nullptr)
      all.push_back(
          {now.model, check.name, Change::Kind::worse, fmt::format("{}, now not there", name_of(check.outcome))});
}

}  // namespace

std::string report_as_table(const KernelReport& report) {
  const auto names = columns_of(report);
  constexpr std::size_t min = 4;  // the width of a column: "FAIL"
  std::size_t first = 5;          // the width of the column of models: "MODEL"
  for (const ModelResult& model : report.models) first = std::max(first, model.model.size());
  std::string above = fmt::format("{:<{}}", "", first), below = fmt::format("{:<{}}", "MODEL", first);
  std::vector<std::size_t> widths;
  for (const std::string& name : names) {
    const auto [group, own] = head_of(name);
    widths.push_back(std::max({min, group.size(), own.size()}));
    above += fmt::format("  {:<{}}", group, widths.back());
    below += fmt::format("  {:<{}}", own, widths.back());
  }
  std::string text = fmt::format("Linux {}\n{}\n", report.version,
                                 report.set.empty() ? "" : fmt::format("models with {}\n", report.set));
  if (above.find_first_not_of(' ') != std::string::npos) text += line_of(above);
  text += line_of(below);
  std::string failures;
  for (const ModelResult& model : report.models) {
    std::string row = fmt::format("{:<{}}", model.model, first);
    for (std::size_t i = 0; i < names.size(); ++i)
      row += fmt::format("  {:<{}}", cell_of(find_check(model, names[i])), widths[i]);
    text += line_of(row);
    for (const CheckResult& check : model.checks)
      if (check.outcome == Outcome::fail)
        failures += fmt::format("{} {}: expected {}, seen {}\n", model.model, check.name, check.expected, check.seen);
  }
  if (!failures.empty()) text += "\n" + failures;
  return text + fmt::format("\n{} passed, {} failed, {} skipped\n", count(report, Outcome::pass),
                            count(report, Outcome::fail), count(report, Outcome::skip));
}

std::string report_as_tap(const KernelReport& report) {
  std::size_t number = 0;
  std::string tests;
  for (const ModelResult& model : report.models)
    for (const CheckResult& check : model.checks) {
      tests += fmt::format("{} {} - {} {}", check.outcome == Outcome::fail ? "not ok" : "ok", ++number,
                           tap_text(model.model), tap_text(check.name));
      if (check.outcome == Outcome::skip) tests += " # SKIP " + tap_text(check.expected);
      tests += "\n";
      if (check.outcome == Outcome::fail)
        tests +=
            fmt::format("  ---\n  expected: {}\n  seen: {}\n  ...\n", in_quotes(check.expected), in_quotes(check.seen));
    }
  const std::string set = report.set.empty() ? "" : fmt::format("# models with {}\n", tap_text(report.set));
  return fmt::format("TAP version 14\n1..{}\n# Linux {}\n", number, tap_text(report.version)) + set + tests;
}

std::vector<Change> changes(const KernelReport& before, const KernelReport& now) {
  std::vector<Change> all;
  for (const ModelResult& model : now.models) {
    const auto old = std::ranges::find(before.models, model.model, &ModelResult::model);
    if (old != before.models.end())
      compare(*old, model, all);
    else
      compare(ModelResult{.model = model.model, .checks = {}}, model, all);
  }
  return all;
}

std::string describe(const std::vector<Change>& all, const KernelReport& before, const KernelReport& now) {
  std::string text = fmt::format("Linux {}, and before {}: {} changed\n", now.version, before.version, all.size());
  for (const Change& change : all) text += fmt::format("{} {}: {}\n", change.model, change.check, change.text);
  return text;
}

}  // namespace vmm::tool
