#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>

namespace vmm {

/// Keeps the vCPUs of a machine out of their guest while something changes under them. Those inside are kicked; those that come wait.
class RunGate {
 public:
  /// `kick_all` makes each vCPU that is inside come out.
  explicit RunGate(std::function<void()> kick_all) : kick_all_{std::move(kick_all)} {}

  /// A vCPU is inside for as long as it holds one. On the vCPU's thread.
  class Inside {
   public:
    explicit Inside(RunGate& gate);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    Inside(Inside&&) = delete;
    Inside& operator=(Inside&&) = delete;

   private:
    RunGate* gate_;
  };

  /// Calls `change` while no vCPU is inside. Not from a thread that is. What waits for a vCPU to come out kicks it again each few milliseconds.
  void with_nobody_inside(const std::function<void()>& change);

 private:
  std::function<void()> kick_all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned inside_{};
  unsigned changing_{};
};

}  // namespace vmm
