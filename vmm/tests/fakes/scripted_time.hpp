#pragma once
#include <chrono>
#include <optional>
#include <vector>

namespace vmm::test {

using std::chrono::nanoseconds;

/// Time that passes only when a test says so.
struct ScriptedTime {
  nanoseconds now{std::chrono::seconds{1}};
  std::optional<nanoseconds> due;  ///< When the timer kicks.
  std::vector<nanoseconds> armed;  ///< The argument of every arm().
  unsigned reads{};                ///< Reads of the clock.

  void pass(nanoseconds time) { now += time; }
  /// Whether the timer is due; true once per setting.
  bool take_kick() {
    if (!due || *due > now) return false;
    due.reset();
    return true;
  }
};

}  // namespace vmm::test
