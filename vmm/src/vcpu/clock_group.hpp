#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace vmm {

/// Keeps the clocks of a machine's vCPUs together while time is hidden from some of them. What is hidden from one vCPU
/// must in the end be hidden from all, or their TSCs would drift apart: a vCPU whose clock has run ahead of another's
/// is kicked, and waits outside the guest until it is back in step. A vCPU that waits has its own clock stopped, so the
/// wait is time that nobody sees.
///
/// Joined before the vCPUs run; then every member is safe on every thread.
class ClockGroup {
 public:
  /// `slack`: how many ticks the clocks may differ before one must wait. A kick's way adds to it.
  explicit ClockGroup(std::uint64_t slack) : slack_{slack} {}

  /// Adds a vCPU; returns its number. `kick` makes it leave the guest soon, and may be called on any thread.
  unsigned join(std::function<void()> kick);

  /// Whether must_wait() would say 0 and nobody has asked the member to call it.
  [[nodiscard]] bool is_in_step(unsigned id, std::uint64_t hidden) const {
    return !members_[id]->asked && most_hidden_ <= hidden + slack_;
  }
  /// Of `hidden` ticks in all that member `id` has had hidden so far: how many more it must hide before it may run. 0
  /// within the slack.
  [[nodiscard]] std::uint64_t must_wait(unsigned id, std::uint64_t hidden);
  /// Member `id` has had `hidden` ticks hidden in all. Kicks members that have fallen out of step.
  void publish(unsigned id, std::uint64_t hidden);

 private:
  struct Member {
    explicit Member(std::function<void()> k) : kick{std::move(k)} {}
    std::function<void()> kick;
    std::atomic<std::uint64_t> hidden{};
    std::atomic<bool> asked{};
  };
  std::uint64_t slack_;
  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<std::uint64_t> most_hidden_{};
};

}  // namespace vmm
