#pragma once
#include <chrono>

#include "kvm/vcpu_statistic.hpp"

namespace vmm {

/// How long a vCPU has been halted inside KVM_RUN, from KVM's binary statistics (Linux 5.14 and later). Without them,
/// all time that the thread did not spend on a CPU counts as halted; on a busy host this charges the guest with less
/// time than it ran. Made and used on the vCPU's thread.
class HaltTime {
 public:
  /// `statistics`: the descriptor from KVM_GET_STATS_FD, or empty.
  explicit HaltTime(Fd statistics);

  /// The total so far; only differences are meaningful. One system call, two without statistics.
  [[nodiscard]] std::chrono::nanoseconds read() const;
  /// Whether it comes from KVM.
  [[nodiscard]] bool exact() const { return waited_.read().has_value(); }

 private:
  VcpuStatistic waited_;
};

}  // namespace vmm
