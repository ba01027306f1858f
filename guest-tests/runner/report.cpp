#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <pugixml.hpp>
#include <sstream>

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

void add_case(pugi::xml_node suite, const TestResult& result) {
  auto test = suite.append_child("testcase");
  test.append_attribute("name").set_value(result.name.c_str());
  test.append_attribute("time").set_value(fmt::format("{:.3f}", result.seconds).c_str());
  if (result.verdict == Verdict::passed) return;
  auto why = test.append_child(result.verdict == Verdict::skipped ? "skipped" : "failure");
  why.append_attribute("message").set_value(result.reason.c_str());
  if (result.verdict == Verdict::failed) why.text().set(fmt::format("{}", fmt::join(result.failures, "\n")).c_str());
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
  pugi::xml_document document;
  auto root = document.append_child("testsuite");
  root.append_attribute("name").set_value(suite.c_str());
  root.append_attribute("tests").set_value(results.size());
  root.append_attribute("failures").set_value(totals.failed);
  root.append_attribute("skipped").set_value(totals.skipped);
  for (const TestResult& result : results) add_case(root, result);
  std::ostringstream out;
  document.save(out, "  ", pugi::format_default, pugi::encoding_utf8);
  return out.str();
}

}  // namespace gt_runner
