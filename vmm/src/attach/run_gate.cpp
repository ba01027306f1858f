#include "attach/run_gate.hpp"

#include <chrono>

namespace vmm {

void RunGate::wait(ThreadInside& thread_inside, pid_t thread) {
  while (changing_ != 0) {
    thread_inside = 0;
    {
      std::unique_lock lock{mutex_};
      changed_.notify_all();
      changed_.wait(lock, [&] { return changing_ == 0; });
    }
    thread_inside = thread;
  }
}

void RunGate::tell_of_leaving() {
  const std::scoped_lock lock{mutex_};
  changed_.notify_all();
}

// A source may take a kick for one of its own timer, so kicks are repeated.
void RunGate::with_nobody_inside(const std::function<void()>& change) {
  constexpr auto patience = std::chrono::milliseconds{5};
  std::unique_lock lock{mutex_};
  ++changing_;
  while (kick_all_()) changed_.wait_for(lock, patience);
  change();
  --changing_;
  changed_.notify_all();
}

}  // namespace vmm
