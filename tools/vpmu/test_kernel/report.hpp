#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

/// Models as rows and checks as columns, then a line for each failure.
std::string report_as_table(const KernelReport& report);
/// TAP version 14, a test for each check of each model.
std::string report_as_tap(const KernelReport& report);
/// JUnit's XML, a test suite for each model.
std::string report_as_junit(const KernelReport& report);
/// In the form that read_report() reads.
std::string report_as_json(const KernelReport& report);

/// Reads a report of report_as_json(). `file` names it in error messages. Fails with kind usage.
Result<KernelReport> read_report(std::string_view text, const std::string& file);

/// A check with another result than in an earlier report.
struct Change {
  enum class Kind { better, worse, other };
  std::string model;
  std::string check;
  Kind kind{};
  std::string text;  ///< "pass, now fail: expected 3, seen 4".
};

/// What changed from one report to another, on the models of the second. A check that fails in both has changed
/// if it saw something else; one that passes in both has not.
std::vector<Change> changes(const KernelReport& before, const KernelReport& now);
/// A line for each change.
std::string describe(const std::vector<Change>& all, const KernelReport& before, const KernelReport& now);

}  // namespace vmm::tool
