#pragma once
#include <cstdint>

namespace vpmu::exec {

/// A byte that is not 0 while somebody wants a vCPU out of its guest. Signals, other threads and, where it is
/// kvm_run's, KVM set it and look at it at any time.
class KickFlag {
 public:
  /// Must outlive all copies.
  explicit KickFlag(const volatile std::uint8_t& byte) : byte_{&byte} {}
  [[nodiscard]] bool is_set() const { return __atomic_load_n(byte_, __ATOMIC_RELAXED) != 0; }

 private:
  const volatile std::uint8_t* byte_;
};

}  // namespace vpmu::exec
