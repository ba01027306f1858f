#pragma once
#include <algorithm>
#include <memory>

#include "fakes/scripted_time.hpp"
#include "perf/cpu_timer.hpp"

namespace vmm::test {

/// A timer on scripted time, which must outlive it.
class FakeTimer final : public CpuTimer {
 public:
  explicit FakeTimer(ScriptedTime& time) : time_{&time} {}
  Result<void> arm(nanoseconds after) override {
    time_->armed.push_back(after);
    time_->due = time_->now + std::max(after, min());
    return {};
  }
  Result<void> arm_wall(nanoseconds after) override { return arm(after); }
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
