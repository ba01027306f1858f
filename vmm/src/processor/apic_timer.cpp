#include "processor/apic_timer.hpp"

namespace vmm {

void ApicTimer::count(std::uint32_t initial, std::uint64_t divisor, bool periodic, std::uint64_t now) {
  stop();
  if (initial == 0) return;
  const std::uint64_t ticks = initial * divisor;
  due_ = now + ticks;
  divisor_ = divisor;
  if (periodic) period_ = ticks;
}

void ApicTimer::divide(std::uint64_t divisor, std::uint64_t now) {
  if (due_) due_ = now + left(now) * divisor;
  period_ = period_ / divisor_ * divisor;
  divisor_ = divisor;
}

std::uint32_t ApicTimer::left(std::uint64_t now) const {
  if (!due_ || *due_ <= now) return 0;
  return static_cast<std::uint32_t>((*due_ - now) / divisor_);
}

bool ApicTimer::take_due(std::uint64_t now) {
  if (!due_ || *due_ > now) return false;
  if (period_ == 0)
    due_.reset();
  else
    *due_ += (now - *due_) / period_ * period_ + period_;  // several periods that nobody saw are one interrupt
  return true;
}

bool ApicTimer::restore(const Image& image) {
  constexpr std::uint64_t max_divisor = 128;  // SDM 3A figure 10-10
  if (image.divisor == 0 || image.divisor > max_divisor) return false;
  stop();
  divisor_ = image.divisor;
  if (image.runs == 0) return true;
  due_ = image.due;
  period_ = image.period;
  return true;
}

}  // namespace vmm
