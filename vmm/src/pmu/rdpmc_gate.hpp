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

/// How RDPMC reaches the PMU.
enum class RdpmcMethod : std::uint8_t {
  breakpoint,  ///< A breakpoint on the guest's #GP handler; changes nothing in the guest.
  rewrite,     ///< The same; in addition each RDPMC found in ring 0 is replaced by an RDMSR, whose exit is cheaper.
               ///< Changes the guest's kernel text.
};

struct RdpmcStatistics {
  std::uint64_t served{};        ///< RDPMC answered.
  std::uint64_t refused{};       ///< RDPMC that faults as on hardware: bad counter, or CPL > 0 without CR4.PCE.
  std::uint64_t rewritten{};     ///< RDPMC instructions replaced by RDMSR.
  std::uint64_t other_faults{};  ///< Other #GP, delivered to the guest.
  std::uint64_t
      given_up{};  ///< 1 if this KVM ignores RFLAGS.RF, so that no fault could be let through: the gate is then off.
};

/// Brings RDPMC to the PMU where KVM has no exit for it. KVM raises #GP; an execution breakpoint on the guest's #GP
/// handler exits before the handler's first instruction. The gate then answers RDPMC and resumes the interrupted code,
/// so the guest never sees the fault. The breakpoint is set only while the PMU is in use; DebugMoves carries out the
/// guest's accesses to debug registers meanwhile.
///
/// RDPMC (0F 33) and RDMSR (0F 32) differ in one byte and use the same registers. RdpmcMethod::rewrite relies on that:
/// the MSR filter also traps the counter numbers as MSR addresses, and an exit counts as RDPMC only if it comes from a
/// rewritten instruction.
class RdpmcGate {
 public:
  RdpmcGate(VcpuPort& port, Breakpoints& breakpoints, GuestView& view, RdpmcMethod method)
      : port_{&port}, breakpoints_{&breakpoints}, view_{&view}, method_{method} {}

  /// Sets or removes the breakpoint. Looks the handler up in the guest's IDT each time, as the table moves during boot.
  Result<void> update(bool in_use);

  /// Call for our breakpoint at the gate. `value_of` answers RDPMC (ecx, cpl, CR4.PCE); empty means #GP.
  using Answer = std::function<std::optional<std::uint64_t>(std::uint32_t ecx, unsigned cpl, bool pce)>;
  Result<void> on_fault_handler(const Answer& value_of);

  /// Whether an RDMSR exit of `index` is a rewritten RDPMC. Reads RIP only if the index could be a counter's.
  Result<bool> is_rewritten(std::uint32_t index);
  /// Counts an RDPMC that was answered as an RDMSR exit.
  void count_served() { ++statistics_.served; }

  [[nodiscard]] const RdpmcStatistics& statistics() const { return statistics_; }

 private:
  struct Frame;
  Result<void> let_through(kvm_regs regs);
  void rewrite(const Frame& frame);
  Result<void> resume_after(const Frame& frame, std::uint64_t value, kvm_regs regs, kvm_sregs sregs);

  VcpuPort* port_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  RdpmcMethod method_;
  std::array<vpmu::GuestLinear, 16> sites_{};  ///< Addresses of rewritten instructions; no kernel has more.
  unsigned site_count_{};
  RdpmcStatistics statistics_{};
};

}  // namespace vmm
