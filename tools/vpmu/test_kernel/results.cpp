#include "test_kernel/results.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace vmm::tool {
namespace {

constexpr std::size_t max_name_length = 40;
constexpr std::size_t max_text_length = 1000;

/// A line's fields; nothing if their number is not `Count`.
template <std::size_t Count>
std::optional<std::array<std::string_view, Count>> fields_of(std::string_view line) {
  std::array<std::string_view, Count> fields;
  for (std::size_t i = 0; i < Count; ++i) {
    const std::size_t end = line.find('\t');
    if ((end == std::string_view::npos) != (i + 1 == Count)) return std::nullopt;
    fields[i] = line.substr(0, end);
    line.remove_prefix(i + 1 == Count ? line.size() : end + 1);
  }
  return fields;
}

/// The results in the checker's lines, and what is wrong with the lines.
struct Lines {
  std::vector<CheckResult> checks;
  bool has_end{};
  std::string wrong;
};

std::string take_check(std::string_view line, Lines& lines) {
  const auto fields = fields_of<5>(line);
  CheckResult check;
  if (!fields || !is_name((*fields)[1]) || !read_outcome((*fields)[2], check.outcome) ||
      lines.checks.size() == max_checks)
    return "a line that cannot be read: " + clean_text(line);
  check.name = (*fields)[1];
  check.expected = clean_text((*fields)[3]);
  check.seen = clean_text((*fields)[4]);
  if (check.name == run_check || std::ranges::find(lines.checks, check.name, &CheckResult::name) != lines.checks.end())
    return "the check " + check.name + " twice";
  lines.checks.push_back(std::move(check));
  return {};
}

std::string take_end(std::string_view line, Lines& lines) {
  const auto fields = fields_of<2>(line);
  std::size_t count = 0;
  if (!fields) return "a line that cannot be read: " + clean_text(line);
  const std::string_view text = (*fields)[1];
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || stopped != text.data() + text.size() || count != lines.checks.size())
    return fmt::format("{} checks, and an END line that says {}", lines.checks.size(), clean_text(text));
  lines.has_end = true;
  return {};
}

Lines read_lines(std::string_view output) {
  Lines lines;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    const std::string_view line = output.substr(0, end);
    output.remove_prefix(std::min(end + 1, output.size()));
    if (line.empty()) continue;
    std::string wrong;
    if (lines.has_end)
      wrong = "lines after the last one: " + clean_text(line);
    else if (line.starts_with("END\t"))
      wrong = take_end(line, lines);
    else
      wrong = line.starts_with("CHECK\t") ? take_check(line, lines) : "a line that cannot be read: " + clean_text(line);
    if (lines.wrong.empty()) lines.wrong = std::move(wrong);
  }
  if (lines.wrong.empty() && !lines.has_end)
    lines.wrong = fmt::format("{} checks, and no END line", lines.checks.size());
  return lines;
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::pass: return "pass";
    case Outcome::fail: return "fail";
    case Outcome::skip: break;
  }
  return "skip";
}

bool read_outcome(std::string_view text, Outcome& outcome) {
  for (const Outcome each : {Outcome::pass, Outcome::fail, Outcome::skip})
    if (text == name_of(each)) return outcome = each, true;
  return false;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= max_name_length && std::ranges::all_of(text, [](char character) {
    return (character >= 'a' && character <= 'z') || (character >= '0' && character <= '9') || character == '.' ||
           character == '-';
  });
}

std::string clean_text(std::string_view text) {
  std::string clean{text.substr(0, max_text_length)};
  for (char& character : clean)
    if (character < ' ' || character > '~') character = '?';
  return clean;
}

ModelResult result_of(std::string_view model, const GuestEnd& end) {
  Lines lines = read_lines(end.output);
  CheckResult run{.name = std::string{run_check},
                  .outcome = Outcome::pass,
                  .expected = "exit code 0, and an END line after all checks",
                  .seen = end.how};
  if (!end.is_success || !lines.wrong.empty()) {
    run.outcome = Outcome::fail;
    if (!lines.wrong.empty()) run.seen += "; " + lines.wrong;
    if (!end.messages.empty()) run.seen += "; " + end.messages;
    std::ranges::replace(run.seen, '\n', ' ');
    run.seen = clean_text(run.seen);
  }
  ModelResult result{.model = std::string{model}, .checks = {std::move(run)}};
  result.checks.insert(result.checks.end(), lines.checks.begin(), lines.checks.end());
  return result;
}

unsigned count(const KernelReport& report, Outcome outcome) {
  unsigned sum = 0;
  for (const ModelResult& model : report.models)
    sum += static_cast<unsigned>(std::ranges::count(model.checks, outcome, &CheckResult::outcome));
  return sum;
}

bool has_run(const KernelReport& report) {
  return std::ranges::any_of(report.models, [](const ModelResult& model) { return model.checks.size() > 1; });
}

}  // namespace vmm::tool
