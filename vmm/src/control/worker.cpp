#include "control/worker.hpp"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "control/blocked_signals.hpp"

namespace vmm {

struct Worker::Shared {
  /// What the thread runs.
  void serve() {
    std::unique_lock lock{mutex};
    for (;;) {
      changed.wait(lock, [this] { return ending || work; });
      if (!work) return;
      const auto now = std::exchange(work, nullptr);
      is_busy = true;
      lock.unlock();
      now();
      lock.lock();
      is_busy = false;
      if (ending) return;
      std::exchange(done, nullptr)();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  // All under the mutex.
  std::function<void()> work, done;
  bool is_busy{false};
  bool ending{false};
};

Worker::Worker() : shared_{std::make_shared<Shared>()} {
  const BlockedSignals blocked;
  thread_ = std::thread{[shared = shared_] { shared->serve(); }};
}

Worker::~Worker() { abandon(); }

void Worker::start(std::function<void()> work, std::function<void()> done) {
  const std::scoped_lock lock{shared_->mutex};
  shared_->work = std::move(work);
  shared_->done = std::move(done);
  shared_->changed.notify_all();
}

bool Worker::abandon() {
  if (!thread_.joinable()) return false;
  std::unique_lock lock{shared_->mutex};
  shared_->ending = true;
  const bool left = shared_->is_busy || shared_->work;
  shared_->changed.notify_all();
  lock.unlock();
  left ? thread_.detach() : thread_.join();
  return left;
}

}  // namespace vmm
