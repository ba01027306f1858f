#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "support/result.hpp"

namespace vmm {

/// Which accesses to a range of MSRs come to us.
enum class MsrTrap : std::uint32_t {
  read = KVM_MSR_FILTER_READ,
  write = KVM_MSR_FILTER_WRITE,
  both = KVM_MSR_FILTER_READ | KVM_MSR_FILTER_WRITE,
};

/// MSRs `first` .. `first + count - 1`.
struct MsrRange {
  std::uint32_t first;
  std::uint32_t count;
  MsrTrap trap{MsrTrap::both};
};

/// A kvm_msr_filter with its bitmaps: everything is allowed except the given ranges.
/// Neighbouring ranges share a filter range, so that KVM's limit of 16 ranges of 12,288 MSRs is rarely met.
/// x2APIC MSRs (800H to 8FFH) are never filtered by KVM, whatever is asked.
class MsrFilter {
 public:
  /// Fails (kind host) when the ranges do not fit into KVM's limits.
  static Result<MsrFilter> create(std::span<const MsrRange> ranges);

  /// Also traps what another filter traps, and takes over its default. Copies its bitmaps, in whole words as KVM does.
  /// Fails (kind host) if there is no room left; fails with EINVAL and changes nothing if KVM would refuse the filter.
  Result<void> add_others(const kvm_msr_filter& others);

  /// For Vm::set_msr_filter; points into this object.
  [[nodiscard]] const kvm_msr_filter& native() const { return filter_; }
  /// Whether a guest access of this kind (`read` or `write`) would come to us.
  [[nodiscard]] bool traps(std::uint32_t msr, MsrTrap access) const;

 private:
  MsrFilter() = default;
  Result<void> add(std::span<const MsrRange> sorted, std::uint32_t flags);
  void split_for(const kvm_msr_filter& others);

  kvm_msr_filter filter_{};
  std::size_t used_{};
  /// One bitmap for each filter range; 1 = allowed. Kept here because the filter points at them.
  std::vector<std::unique_ptr<std::vector<std::uint8_t>>> bitmaps_;
};

}  // namespace vmm
