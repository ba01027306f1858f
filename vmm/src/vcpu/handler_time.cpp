#include "vcpu/handler_time.hpp"

#include <x86intrin.h>

#include <algorithm>

namespace vmm {

void HandlerTime::begin() {
  if (clock_ == HandlerClock::real || open_) return;
  open_ = true;
  closing_ = false;
  exits_ = 0;
  if (owing_) return;  // the last handler's ticks have not been given back: go on from there
  const auto offset = port_->tsc_offset();
  if (!offset) {
    clock_ = HandlerClock::real;  // this KVM cannot shift one vCPU's clock
    open_ = false;
    return;
  }
  true_offset_ = *offset;
  hidden_ = 0;
  ++statistics_.windows;
}

// Part of an exit lies in the world switches around it, which we do not see. The shortest time from an entry to the next return
// bounds them from above by almost nothing; three quarters of it are surely not the guest's own time.
Result<void> HandlerTime::before_run() {
  if (open_ && left_at_ != 0) {
    const std::uint64_t switches = shortest_round_ == ~0ULL ? 0 : shortest_round_ / 4 * 3;
    hidden_ += __rdtsc() - left_at_ + switches;
    VMM_TRY(port_->set_tsc_offset(true_offset_ - hidden_));
    if (closing_ || ++exits_ == most_exits) {
      open_ = closing_ = false;
      owing_ = true;
    }
  } else if (owing_) {
    VMM_TRY(give_back());
  }
  left_at_ = 0;
  entered_at_ = __rdtsc();
  return {};
}

void HandlerTime::after_run() {
  left_at_ = __rdtsc();
  if (entered_at_ != 0 && open_) shortest_round_ = std::min(shortest_round_, left_at_ - entered_at_);
}

Result<void> HandlerTime::give_back() {
  owing_ = false;
  statistics_.hidden_ticks += hidden_;
  return port_->set_tsc_offset(true_offset_);
}

}  // namespace vmm
