#include <fmt/format.h>

#include <algorithm>
#include <pugixml.hpp>
#include <sstream>

#include "test_kernel/report.hpp"

namespace vmm::tool {
namespace {

void set(pugi::xml_node node, const char* name, const std::string& text) {
  node.append_attribute(name).set_value(clean_text(text).c_str());
}

void set_totals(pugi::xml_node node, std::size_t tests, std::size_t failures, std::size_t skipped) {
  node.append_attribute("tests").set_value(tests);
  node.append_attribute("failures").set_value(failures);
  node.append_attribute("errors").set_value(0);
  node.append_attribute("skipped").set_value(skipped);
}

void add_case(pugi::xml_node suite, const std::string& model, const CheckResult& check) {
  auto test = suite.append_child("testcase");
  set(test, "classname", "vpmu." + model);
  set(test, "name", check.name);
  if (check.outcome == Outcome::fail)
    set(test.append_child("failure"), "message", fmt::format("expected {}, seen {}", check.expected, check.seen));
  if (check.outcome == Outcome::skip) set(test.append_child("skipped"), "message", check.expected);
}

void add_suite(pugi::xml_node suites, const ModelResult& model) {
  const auto number = [&model](Outcome outcome) {
    return static_cast<std::size_t>(std::ranges::count(model.checks, outcome, &CheckResult::outcome));
  };
  auto suite = suites.append_child("testsuite");
  set(suite, "name", model.model);
  set_totals(suite, model.checks.size(), number(Outcome::fail), number(Outcome::skip));
  for (const CheckResult& check : model.checks) add_case(suite, model.model, check);
}

}  // namespace

std::string report_as_junit(const KernelReport& report) {
  const std::size_t passed = count(report, Outcome::pass), failed = count(report, Outcome::fail),
                    skipped = count(report, Outcome::skip);
  pugi::xml_document document;
  auto declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version").set_value("1.0");
  declaration.append_attribute("encoding").set_value("UTF-8");
  auto suites = document.append_child("testsuites");
  set(suites, "name", "Linux " + report.version + (report.set.empty() ? "" : ", models with " + report.set));
  set_totals(suites, passed + failed + skipped, failed, skipped);
  for (const ModelResult& model : report.models) add_suite(suites, model);
  std::ostringstream out;
  document.save(out, "  ", pugi::format_default, pugi::encoding_utf8);
  return out.str();
}

}  // namespace vmm::tool
