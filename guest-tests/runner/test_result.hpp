#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt_runner {

enum class Verdict {
  passed,
  failed,
  skipped,  ///< The source or the host cannot judge this test; `reason` says why.
};

/// What became of one test.
struct TestResult {
  std::string name;
  Verdict verdict{Verdict::failed};
  std::string reason;                 ///< skipped, or failed outside a check.
  std::vector<std::string> failures;  ///< Failed checks: "file:line: text".
  std::vector<std::string> log;       ///< What the guest had to say.
  std::uint32_t checks{};             ///< Checks made.
  double seconds{};
};

}  // namespace gt_runner
