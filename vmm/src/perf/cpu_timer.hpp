#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// Kicks the calling thread's vCPU after some time on the CPU, and reads that time. One per vCPU thread, made and used
/// on that thread.
class CpuTimer {
 public:
  virtual ~CpuTimer() = default;
  /// Kicks once, about `after` from now; replaces an earlier arm(). Less than shortest() counts as shortest().
  virtual Result<void> arm(std::chrono::nanoseconds after) = 0;
  /// Cancels arm() and arm_wall().
  virtual Result<void> disarm() = 0;
  /// Kicks once, about `after` from now, even if the vCPU is halted; replaces an earlier arm_wall(), not an arm().
  virtual Result<void> arm_wall(std::chrono::nanoseconds after) = 0;
  /// Time that the thread has spent on a CPU. One system call.
  [[nodiscard]] virtual std::chrono::nanoseconds now() const = 0;
  /// "perf cpu-clock" or "POSIX timer".
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] static constexpr std::chrono::nanoseconds min() { return std::chrono::microseconds{10}; }

  /// A perf `cpu-clock` event on this thread, which stands still while the thread sleeps; if perf is not allowed, a
  /// POSIX timer, which may kick an idle vCPU needlessly. Fails only if neither is available.
  static Result<std::unique_ptr<CpuTimer>> create();
  /// What create() falls back to.
  static Result<std::unique_ptr<CpuTimer>> create_without_perf();
};

/// Makes the timer of the calling thread: CpuTimer::create, or a test's.
using TimerFactory = std::function<Result<std::unique_ptr<CpuTimer>>()>;

}  // namespace vmm
