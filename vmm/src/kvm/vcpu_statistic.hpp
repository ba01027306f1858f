#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvm/fd.hpp"

namespace vmm {

/// One of the statistics that KVM keeps of a vCPU (KVM_GET_STATS_FD, Linux 5.14).
class VcpuStatistic {
 public:
  /// `name` is KVM's. If `statistics` is invalid or the name unknown, read() returns nothing.
  VcpuStatistic(Fd statistics, std::string_view name);
  /// Cost: one system call.
  [[nodiscard]] std::optional<std::uint64_t> read() const;

 private:
  Fd statistics_;
  off_t at_;  ///< 0 = none.
};

}  // namespace vmm
