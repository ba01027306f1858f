#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt_runner {

enum class Verdict {
  passed,
  failed,
  skipped,  ///< The test is meaningless with this source or host; `reason` says why.
};

/// The result of one test.
struct TestResult {
  std::string name;
  Verdict verdict{Verdict::failed};
  std::string reason;                 ///< For skipped, or failed outside a check.
  std::vector<std::string> failures;  ///< Failed checks: "file:line: text".
  std::vector<std::string> log;       ///< Lines that the guest logged.
  std::uint32_t checks{};             ///< Checks made.
  double seconds{};
};

}  // namespace gt_runner
