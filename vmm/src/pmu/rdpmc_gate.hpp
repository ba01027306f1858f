#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "support/result.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

struct RdpmcStatistics {
  std::uint64_t served{};        ///< RDPMC answered.
  std::uint64_t refused{};       ///< RDPMC that faults as on hardware: bad counter, or CPL > 0 without CR4.PCE.
  std::uint64_t other_faults{};  ///< Other #GP, delivered to the guest.
  std::uint64_t
      given_up{};  ///< 1 if this KVM ignores RFLAGS.RF, so that no fault could be let through: the gate is then off.
};

/// Brings RDPMC to the PMU where KVM has no exit for it. KVM raises #GP; an execution breakpoint on the guest's #GP
/// handler exits before the handler's first instruction. The gate then answers RDPMC and resumes the interrupted code,
/// so the guest never sees the fault. The breakpoint is set only while the PMU is in use; DebugMoves carries out the
/// guest's accesses to debug registers meanwhile.
class RdpmcGate {
 public:
  RdpmcGate(VcpuBackend& backend, Breakpoints& breakpoints, GuestView& view)
      : backend_{&backend}, breakpoints_{&breakpoints}, view_{&view} {}

  /// Sets or removes the breakpoint. Looks the handler up in the guest's IDT each time, as the table moves during boot.
  Result<void> update(bool in_use);

  /// Call for our breakpoint at the gate. `value_of` answers RDPMC (ecx, cpl, CR4.PCE); empty means #GP.
  using ReadCounter = std::function<std::optional<std::uint64_t>(std::uint32_t ecx, unsigned cpl, bool pce)>;
  Result<void> on_fault_handler(const ReadCounter& value_of);

  /// Counts an RDPMC that was answered at an exit of its own.
  void count_served() { ++statistics_.served; }

  [[nodiscard]] const RdpmcStatistics& statistics() const { return statistics_; }

 private:
  struct Frame;
  Result<void> let_through(kvm_regs regs);
  Result<void> resume_after(const Frame& frame, std::uint64_t value, kvm_regs regs, kvm_sregs sregs);

  VcpuBackend* backend_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  RdpmcStatistics statistics_{};
};

}  // namespace vmm
