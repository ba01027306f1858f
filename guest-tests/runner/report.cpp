#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gt_runner {
namespace {

std::string_view label(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed: return "PASS";
    case Verdict::failed: return "FAIL";
    case Verdict::skipped: return "SKIP";
  }
  return "";
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace

Totals count(std::span<const TestResult> results) {
  Totals totals;
  for (const TestResult& r : results) {
    totals.passed += r.verdict == Verdict::passed ? 1 : 0;
    totals.failed += r.verdict == Verdict::failed ? 1 : 0;
    totals.skipped += r.verdict == Verdict::skipped ? 1 : 0;
  }
  return totals;
}

std::string describe(const TestResult& r) {
  std::string text = fmt::format("{} {}", label(r.verdict), r.name);
  if (r.verdict != Verdict::skipped) text += fmt::format(" ({} checks, {:.2f} s)", r.checks, r.seconds);
  if (!r.reason.empty()) text += ": " + r.reason;
  for (const std::string& line : r.failures) text += "\n  " + line;
  for (const std::string& line : r.log) text += "\n  | " + line;
  return text;
}

std::string describe(const Totals& t) {
  std::string text = fmt::format("{} passed, {} failed", t.passed, t.failed);
  if (t.skipped > 0) text += fmt::format(", {} skipped", t.skipped);
  return text;
}

std::string junit(std::span<const TestResult> results, const std::string& suite) {
  const Totals totals = count(results);
  std::string text =
      fmt::format("<?xml version=\"1.0\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
                  escape(suite), results.size(), totals.failed, totals.skipped);
  for (const TestResult& r : results) {
    text += fmt::format(R"(  <testcase name="{}" time="{:.3f}">)", escape(r.name), r.seconds);
    if (r.verdict == Verdict::skipped) text += fmt::format("<skipped message=\"{}\"/>", escape(r.reason));
    if (r.verdict == Verdict::failed)
      text += fmt::format("<failure message=\"{}\">{}</failure>", escape(r.reason),
                          escape(fmt::format("{}", fmt::join(r.failures, "\n"))));
    text += "</testcase>\n";
  }
  return text + "</testsuite>\n";
}

}  // namespace gt_runner
