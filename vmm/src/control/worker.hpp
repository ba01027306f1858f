#pragma once
#include <functional>
#include <memory>
#include <thread>

namespace vmm {

/// A thread for work that may never end, such as writing to a file whose server is dead: make it before the process
/// gives up the right to make threads. Its owner is one thread.
class Worker {
 public:
  Worker();
  /// As abandon(), but if there is no work, the thread ends first.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Does `work` on the thread, then calls `done` there, unless abandon() came first. Once the last work is done.
  void start(std::function<void()> work, std::function<void()> done);
  /// Nobody waits for the work any longer: if it is still under way, `done` is never called, and it ends with the
  /// process. Until then it uses what it was given. Returns whether there was any.
  bool abandon();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vmm
