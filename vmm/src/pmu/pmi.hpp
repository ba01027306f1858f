#pragma once
#include <cstdint>

#include "support/result.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

struct PmiStatistics {
  std::uint64_t requested{};
  std::uint64_t delivered_nmi{};
  std::uint64_t delivered_fixed{};
  std::uint64_t joined{};         ///< Requests that met one already pending (rule V5).
  std::uint64_t dropped{};        ///< Requests that found LVTPC masked (rule V4).
  std::uint64_t put_off{};        ///< Times that a delivery was postponed because LVTPC's mask could not be set yet.
  std::uint64_t unmasked{};       ///< Delivered with LVTPC's mask left clear, as it could not be set.
  std::uint64_t undeliverable{};  ///< LVTPC asks for a delivery mode that we cannot raise.
};

/// Delivers performance monitoring interrupts through the LVTPC that the guest programmed. SDM 3A 10.5.1, rules V1 to
/// V7. KVM sets LVTPC's mask bit by itself only for its own vPMU; here it is ours to set (rule V3).
class Pmi {
 public:
  /// The PMU asks for an interrupt.
  void request();
  /// Whether a request waits for deliver().
  [[nodiscard]] bool pending() const { return pending_; }
  void set_pending(bool pending) { pending_ = pending; }
  /// Delivers what is pending, or drops it if LVTPC is masked. It stays pending only if LVTPC's mask cannot be set now,
  /// or if not `may_raise`.
  /// Call between runs, at an instruction boundary. Costs nothing if nothing is pending; otherwise one or two ioctls,
  /// that of the interrupt, and in xAPIC mode a store by the vCPU.
  Result<void> deliver(VcpuBackend& backend, bool may_raise = true);
  /// Whether LVTPC is masked: a delivery masks it, the guest's handler unmasks it. One or two ioctls.
  static Result<bool> is_masked(VcpuBackend& backend);

  [[nodiscard]] const PmiStatistics& statistics() const { return statistics_; }

 private:
  bool pending_{};
  PmiStatistics statistics_{};
};

}  // namespace vmm
