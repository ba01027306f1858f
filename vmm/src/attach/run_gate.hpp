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

  /// Where one vCPU is: 0 is outside; otherwise inside, on the thread with that id. Each vCPU has a place of its own,
  /// so that vCPUs do not wait for each other.
  using Place = std::atomic<pid_t>;

  /// The vCPU with this place is inside while this object lives. It is made and destroyed on the vCPU's thread, whose
  /// id is `thread`.
  class Inside {
   public:
    // with_nobody_inside() sets changing_ and then reads the places; this sets its place and then reads changing_. So
    // at least one of the two sees the other.
    Inside(RunGate& gate, Place& place, pid_t thread) : gate_{&gate}, place_{&place} {
      place = thread;
      if (gate.changing_ != 0) gate.wait(place, thread);
    }
    ~Inside() {
      *place_ = 0;
      if (gate_->changing_ != 0) gate_->tell_of_leaving();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    Inside(Inside&&) = delete;
    Inside& operator=(Inside&&) = delete;

   private:
    RunGate* gate_;
    Place* place_;
  };

  /// Calls `change` while no vCPU is inside. A thread that is inside must not call it. While it waits for vCPUs to
  /// leave, it kicks them again every few milliseconds.
  void with_nobody_inside(const std::function<void()>& change);

 private:
  void wait(Place& place, pid_t thread);
  void tell_of_leaving();

  std::function<bool()> kick_all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<unsigned> changing_{};
};

}  // namespace vmm
