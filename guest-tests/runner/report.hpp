#pragma once
#include <span>
#include <string>

#include "test_result.hpp"

namespace gt_runner {

struct Totals {
  unsigned passed{}, failed{}, skipped{};
};
Totals count(std::span<const TestResult> results);

/// The text about one test for a person: a line, then its failures and log.
std::string describe(const TestResult& result);
/// "N passed, N failed", with the number of skipped tests if there are any.
std::string describe(const Totals& totals);
/// The results as a JUnit document; `suite` names model and source.
std::string junit(std::span<const TestResult> results, const std::string& suite);

}  // namespace gt_runner
