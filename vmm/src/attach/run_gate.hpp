#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace vmm {

/// Keeps the vCPUs of a machine out of their guest while something changes under them. Those inside are kicked; those
/// that come wait.
class RunGate {
 public:
  /// `kick_all` makes each vCPU that is inside come out, and says whether there was one.
  explicit RunGate(std::function<bool()> kick_all) : kick_all_{std::move(kick_all)} {}

  /// Where one vCPU is: 0 is outside, otherwise it is inside on the thread of that number. Of the vCPU's own, so that
  /// vCPUs do not wait for each other.
  using Place = std::atomic<pid_t>;

  /// The vCPU with that place is inside for as long as it holds one. On the vCPU's thread, the number of which is
  /// `thread`.
  class Inside {
   public:
    // Whoever changes something says so and then looks who is inside; here it is the other way round, and one of the
    // two sees the other.
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

  /// Calls `change` while no vCPU is inside. Not from a thread that is. What waits for a vCPU to come out kicks it
  /// again each few milliseconds.
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
