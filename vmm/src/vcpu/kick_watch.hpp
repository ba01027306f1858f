#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace vmm {

/// Measures how long a kick takes to get a vCPU out of its guest. A kick that waits longer than in_time() is late:
/// something that should be bounded runs on, or the host gave the vCPU's thread no time.
class KickWatch {
 public:
  static constexpr std::chrono::nanoseconds in_time() { return std::chrono::milliseconds{10}; }

  /// Call just before the vCPU is kicked; any thread.
  void kicked();
  /// The vCPU has left its guest. On its thread, as the next one; costs one load if nobody has kicked.
  void looked() {
    if (since_.load(std::memory_order_relaxed) != 0) count();
  }
  /// The vCPU was not in its guest: a kick meanwhile waited for something else.
  void forget() { since_.store(0, std::memory_order_relaxed); }

  struct Late {
    std::uint64_t kicks{};           ///< Includes one that still waits.
    std::chrono::nanoseconds max{};  ///< Of all kicks, late or not.
  };
  /// Any thread.
  [[nodiscard]] Late late() const;

 private:
  void count();
  std::atomic<std::int64_t> since_{};  ///< Steady clock, in ns, at the first kick that looked() has not seen; 0: none.
  std::atomic<std::uint64_t> late_{};
  std::atomic<std::int64_t> max_{};
};

}  // namespace vmm
