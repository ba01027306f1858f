#include "processor/virtual_time.hpp"

#include <algorithm>
#include <utility>

namespace vmm {

class VirtualTime::Timer final : public CpuTimer {
 public:
  explicit Timer(VirtualTime& time) : time_{&time} {}
  Result<void> arm(std::chrono::nanoseconds after) override {
    time_->due_ = time_->run_ + ticks(after);
    return {};
  }
  Result<void> arm_wall(std::chrono::nanoseconds after) override {
    time_->wall_due_ = time_->wall() + ticks(after);
    return {};
  }
  Result<void> disarm() override {
    time_->due_.reset();
    time_->wall_due_.reset();
    return {};
  }
  [[nodiscard]] std::chrono::nanoseconds now() const override {
    __extension__ using wide = unsigned __int128;
    return std::chrono::nanoseconds{static_cast<std::int64_t>(wide{time_->run_} * 1'000'000 / time_->tsc_khz_)};
  }
  [[nodiscard]] std::string_view name() const override { return "virtual time"; }

 private:
  [[nodiscard]] std::uint64_t ticks(std::chrono::nanoseconds after) const {
    constexpr std::chrono::nanoseconds max = std::chrono::hours{1};
    const auto bounded = std::clamp(after, std::chrono::nanoseconds{min()}, max);
    return static_cast<std::uint64_t>(bounded.count()) / 1000 * time_->tsc_khz_ / 1000;
  }
  VirtualTime* time_;
};

std::uint64_t VirtualTime::core_ran() const {
  if (core_khz_ == tsc_khz_) return run_;
  __extension__ using wide = unsigned __int128;
  return static_cast<std::uint64_t>(wide{run_} * core_khz_ / tsc_khz_);
}

void VirtualTime::pass(std::uint64_t instructions) {
  clock_->pass(instructions);
  run_ += instructions;
  if (watched_) unhalted_ += instructions;
}

bool VirtualTime::is_due() const { return (due_ && *due_ <= run_) || (wall_due_ && *wall_due_ <= wall()); }

bool VirtualTime::take_due() {
  if (!is_due()) return false;
  due_.reset();
  wall_due_.reset();
  return true;
}

std::uint64_t VirtualTime::until_due() const {
  const std::uint64_t by_clock = clock_->instructions_in(until_wall_due());
  return due_ ? std::min(by_clock, *due_ - std::min(*due_, run_)) : by_clock;
}

std::uint64_t VirtualTime::until_wall_due() const {
  return wall_due_ ? *wall_due_ - std::min(*wall_due_, wall()) : ~0ULL;
}

TimerFactory VirtualTime::timers() {
  return [this]() -> Result<std::unique_ptr<CpuTimer>> { return std::make_unique<Timer>(*this); };
}

}  // namespace vmm
