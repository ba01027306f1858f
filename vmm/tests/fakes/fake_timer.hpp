#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "sources/cpu_timer.hpp"

namespace vmm::test {

using std::chrono::nanoseconds;

/// Time as the test says it passes.
struct ScriptedTime {
  nanoseconds now{std::chrono::seconds{1}};
  std::optional<nanoseconds> due;       ///< When the timer kicks.
  std::vector<nanoseconds> armed;       ///< Every arm(), as it was asked for.
  unsigned reads{};                     ///< Reads of the clock.

  void pass(nanoseconds time) { now += time; }
  /// Whether the timer has to kick by now; it kicks once.
  bool take_kick() {
    if (!due || *due > now) return false;
    due.reset();
    return true;
  }
};

/// A timer on scripted time, which must outlive it.
class FakeTimer final : public CpuTimer {
 public:
  explicit FakeTimer(ScriptedTime& time) : time_{&time} {}
  Result<void> arm(nanoseconds after) override {
    time_->armed.push_back(after);
    time_->due = time_->now + std::max(after, shortest());
    return {};
  }
  Result<void> disarm() override {
    time_->due.reset();
    return {};
  }
  [[nodiscard]] nanoseconds now() const override {
    ++time_->reads;
    return time_->now;
  }
  [[nodiscard]] std::string_view name() const override { return "scripted"; }

 private:
  ScriptedTime* time_;
};

}  // namespace vmm::test
