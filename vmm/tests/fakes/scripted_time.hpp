#pragma once
#include <chrono>
#include <optional>
#include <vector>

namespace vmm::test {

using std::chrono::nanoseconds;

/// Time that passes as the test says.
struct ScriptedTime {
  nanoseconds now{std::chrono::seconds{1}};
  std::optional<nanoseconds> due;  ///< When the timer kicks.
  std::vector<nanoseconds> armed;  ///< Every arm(), as it was asked for.
  unsigned reads{};                ///< Reads of the clock.

  void pass(nanoseconds time) { now += time; }
  /// Whether the timer has to kick by now; it kicks once.
  bool take_kick() {
    if (!due || *due > now) return false;
    due.reset();
    return true;
  }
};

}  // namespace vmm::test
