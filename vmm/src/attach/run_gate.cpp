#include "attach/run_gate.hpp"

#include <chrono>

namespace vmm {

RunGate::Inside::Inside(RunGate& gate) : gate_{&gate} {
  std::unique_lock lock{gate.mutex_};
  gate.changed_.wait(lock, [&] { return gate.changing_ == 0; });
  ++gate.inside_;
}

RunGate::Inside::~Inside() {
  const std::scoped_lock lock{gate_->mutex_};
  --gate_->inside_;
  gate_->changed_.notify_all();
}

// A source may take a kick for its own timer's, hence the repetition.
void RunGate::with_nobody_inside(const std::function<void()>& change) {
  constexpr auto patience = std::chrono::milliseconds{5};
  std::unique_lock lock{mutex_};
  ++changing_;
  while (inside_ != 0) {
    lock.unlock();
    kick_all_();
    lock.lock();
    changed_.wait_for(lock, patience, [this] { return inside_ == 0; });
  }
  change();
  --changing_;
  changed_.notify_all();
}

}  // namespace vmm
