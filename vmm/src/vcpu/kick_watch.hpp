#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace vmm {

/// Tells how long kicks of a vCPU wait until it has come out of its guest. A kick that waits longer than in_time() is
/// late: something runs on that should have been bounded, or the host gave the vCPU's thread no time.
class KickWatch {
 public:
  static constexpr std::chrono::nanoseconds in_time() { return std::chrono::milliseconds{10}; }

  /// Somebody kicks the vCPU now. Before the kick itself; any thread.
  void kicked();
  /// The vCPU has come out. On its thread, as what follows; costs one load where nobody has kicked.
  void looked() {
    if (since_.load(std::memory_order_relaxed) != 0) count();
  }
  /// The vCPU was not in its guest: what has been kicked meanwhile waited for something else.
  void forget() { since_.store(0, std::memory_order_relaxed); }

  struct Late {
    std::uint64_t kicks{};               ///< One that still waits among them.
    std::chrono::nanoseconds longest{};  ///< Of all kicks, late or not.
  };
  /// Any thread.
  [[nodiscard]] Late late() const;

 private:
  void count();
  std::atomic<std::int64_t>
      since_{};  ///< Of the steady clock, in ns: when the first kick came that nobody has looked at; 0: there is none.
  std::atomic<std::uint64_t> late_{};
  std::atomic<std::int64_t> longest_{};
};

}  // namespace vmm
