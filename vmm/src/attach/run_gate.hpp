#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace vmm {

/// Keeps the vCPUs of a machine out of their guest while something changes that they use. vCPUs inside are kicked;
/// vCPUs that want to enter wait.
class RunGate {
 public:
  /// `kick_all` makes each vCPU that is inside come out, and says whether there was one.
  explicit RunGate(std::function<bool()> kick_all) : kick_all_{std::move(kick_all)} {}

  /// The id of the thread on which one vCPU is inside; 0: it is outside. Each vCPU has its own, so that vCPUs do not
  /// wait for each other.
  using ThreadInside = std::atomic<pid_t>;

  /// The vCPU is inside while this object lives, and `thread_inside`, its own, is `thread`: the id of the vCPU's
  /// thread, on which it is made and destroyed.
  class Inside {
   public:
    // with_nobody_inside() sets changing_ and then reads all of these ids; this sets its own and then reads changing_.
    // So at least one of the two sees the other.
    Inside(RunGate& gate, ThreadInside& thread_inside, pid_t thread) : gate_{&gate}, thread_inside_{&thread_inside} {
      thread_inside = thread;
      if (gate.changing_ != 0) gate.wait(thread_inside, thread);
    }
    ~Inside() {
      *thread_inside_ = 0;
      if (gate_->changing_ != 0) gate_->tell_of_leaving();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    Inside(Inside&&) = delete;
    Inside& operator=(Inside&&) = delete;

   private:
    RunGate* gate_;
    ThreadInside* thread_inside_;
  };

  /// Calls `change` while no vCPU is inside. A thread that is inside must not call it. While it waits for vCPUs to
  /// leave, it kicks them again every few milliseconds.
  void with_nobody_inside(const std::function<void()>& change);

 private:
  void wait(ThreadInside& thread_inside, pid_t thread);
  void tell_of_leaving();

  std::function<bool()> kick_all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<unsigned> changing_{};
};

}  // namespace vmm
