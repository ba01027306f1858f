#pragma once
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
  std::uint64_t refused{};       ///< RDPMC that really faults: bad counter, or CPL > 0 without CR4.PCE.
  std::uint64_t other_faults{};  ///< #GP that had nothing to do with RDPMC, let through.
};

/// Brings RDPMC to the PMU where KVM has no exit for it: KVM raises #GP, and an execution breakpoint on the guest's #GP handler stops
/// before the handler's first instruction. RDPMC is then answered and the interrupted code resumed; the guest never sees the fault.
/// The breakpoint is armed only while the PMU is in use, and leaves the guest's own debug registers working.
class RdpmcGate {
 public:
  RdpmcGate(VcpuPort& port, Breakpoints& breakpoints, GuestView& view) : port_{&port}, breakpoints_{&breakpoints}, view_{&view} {}

  /// Arms or disarms. Finds the handler through the guest's IDT each time it arms: the table moves during boot.
  Result<void> update(bool in_use);

  /// Called for a breakpoint of ours at the gate. `value_of` answers RDPMC (ecx, cpl, CR4.PCE) or says #GP.
  using Answer = std::function<std::optional<std::uint64_t>(std::uint32_t ecx, unsigned cpl, bool pce)>;
  Result<void> on_fault_handler(const Answer& value_of);

  [[nodiscard]] const RdpmcStatistics& statistics() const { return statistics_; }

 private:
  struct Frame;
  std::optional<vpmu::GuestLinear> gp_handler(const kvm_sregs& sregs);
  std::optional<kvm_segment> segment(const kvm_sregs& sregs, std::uint16_t selector);
  Result<void> let_through(kvm_regs regs);
  Result<void> resume_after(const Frame& frame, std::uint64_t value, kvm_regs regs, kvm_sregs sregs);

  VcpuPort* port_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  RdpmcStatistics statistics_{};
};

}  // namespace vmm
