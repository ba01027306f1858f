#pragma once
#include <chrono>

#include "kvm/vcpu_statistic.hpp"

namespace vmm {

/// How long a vCPU has been halted inside KVM_RUN, from KVM's binary statistics (Linux 5.14 and later). Where KVM has
/// none, all time that the thread did not spend on a CPU is taken for a halt, which charges the guest with less than it
/// ran on a busy host. Made and used on the vCPU's thread.
class HaltTime {
 public:
  /// `statistics`: of KVM_GET_STATS_FD, or empty.
  explicit HaltTime(Fd statistics);

  /// In all so far; only differences mean something. One system call, two without statistics.
  [[nodiscard]] std::chrono::nanoseconds read() const;
  /// Whether it comes from KVM.
  [[nodiscard]] bool exact() const { return waited_.read().has_value(); }

 private:
  VcpuStatistic waited_;
};

}  // namespace vmm
