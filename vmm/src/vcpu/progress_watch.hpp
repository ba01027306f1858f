#pragma once
#include <cstdint>
#include <utility>

#include "support/result.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// Finds a vCPU that stands still: neither does an instruction retire, nor is an event delivered, nor does it wait for
/// something. That cannot happen unless we are wrong; without this it would keep a CPU of the host busy for ever.
class ProgressWatch {
 public:
  /// Iterations of a vCPU's loop that may end where they began: a second at most, unless each enters a slow KVM.
  static constexpr unsigned max_turns = 100'000;

  /// A turn has done something.
  void got_on() { turns_ = 0; }
  /// Whether `done`, which grows with what the guest does, has changed since the last call.
  bool has_changed(std::uint64_t done) { return std::exchange(done_, done) != done; }
  /// A turn has ended of which nothing is known. True once so many in a row have ended with the same registers.
  bool stands(const kvm_regs& regs);

  /// An internal error that shows the vCPU's state.
  static Failure failure(VcpuBackend& backend);

 private:
  kvm_regs regs_{};
  std::uint64_t done_{};
  unsigned turns_{};
};

}  // namespace vmm
