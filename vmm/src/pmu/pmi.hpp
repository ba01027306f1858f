#pragma once
#include <cstdint>

#include "support/result.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// What happens to a PMI that is requested while LVTPC is masked (rule V4).
enum class LvtpcMasked : std::uint8_t {
  hold,  ///< One is kept and delivered when the guest unmasks.
  drop,  ///< It is lost, as in KVM's own vPMU.
};

struct PmiStatistics {
  std::uint64_t requested{};
  std::uint64_t delivered_nmi{};
  std::uint64_t delivered_fixed{};
  std::uint64_t joined{};         ///< Requests that met one already pending (rule V5).
  std::uint64_t dropped{};        ///< Lost to LvtpcMasked::drop.
  std::uint64_t put_off{};        ///< Times that a delivery was postponed because LVTPC's mask could not be set yet.
  std::uint64_t unmasked{};       ///< Delivered with LVTPC's mask left clear, as it could not be set.
  std::uint64_t undeliverable{};  ///< LVTPC asks for a delivery mode that we cannot raise.
};

/// Delivers performance monitoring interrupts through the LVTPC that the guest programmed. SDM 3A 10.5.1, rules V1 to
/// V7. KVM sets LVTPC's mask bit by itself only for its own vPMU; here it is ours to set (rule V3).
class Pmi {
 public:
  explicit Pmi(LvtpcMasked policy) : policy_{policy} {}

  /// The PMU asks for an interrupt.
  void request();
  /// Whether an interrupt waits for LVTPC.
  [[nodiscard]] bool pending() const { return pending_ > 0; }
  /// Requests that wait, for save and restore: 0 to 2.
  [[nodiscard]] unsigned waiting() const { return pending_; }
  void set_waiting(unsigned requests) {
    pending_ = requests;
    held_ = false;
  }
  /// Delivers what is pending as far as LVTPC allows. Call between runs, at an instruction boundary. Costs nothing if
  /// nothing is pending; otherwise one or two ioctls, that of the interrupt, and in xAPIC mode a store by the vCPU.
  Result<void> deliver(VcpuPort& port);
  /// Whether LVTPC is masked: a delivery masks it, the guest's handler unmasks it. One or two ioctls.
  static Result<bool> is_masked(VcpuPort& port);

  [[nodiscard]] const PmiStatistics& statistics() const { return statistics_; }

 private:
  LvtpcMasked policy_;
  unsigned pending_{};  ///< 0, 1, or 2 for the pair of rule Q5.
  bool held_{};         ///< LVTPC was masked at the last deliver(): further requests join the pending one (rule V5).
  PmiStatistics statistics_{};
};

}  // namespace vmm
