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
  rewrite,     ///< And each RDPMC found in ring 0 is made an RDMSR, whose exit is cheaper. Changes the guest's kernel
               ///< text.
};

struct RdpmcStatistics {
  std::uint64_t served{};        ///< RDPMC answered.
  std::uint64_t refused{};       ///< RDPMC that really faults: bad counter, or CPL > 0 without CR4.PCE.
  std::uint64_t rewritten{};     ///< Sites made RDMSR.
  std::uint64_t other_faults{};  ///< #GP that had nothing to do with RDPMC, let through.
  std::uint64_t
      given_up{};  ///< 1 when this KVM ignores RFLAGS.RF, so that no fault could be let through: the gate stays off.
};

/// Brings RDPMC to the PMU where KVM has no exit for it: KVM raises #GP, and an execution breakpoint on the guest's #GP
/// handler stops before the handler's first instruction. RDPMC is then answered and the interrupted code resumed; the
/// guest never sees the fault. The breakpoint is armed only while the PMU is in use. What the guest writes to its debug
/// registers meanwhile takes effect when it next leaves to us: KVM tells nobody of it.
///
/// RDPMC (0F 33) and RDMSR (0F 32) differ in one byte and take and give the same registers, which RdpmcMethod::rewrite
/// uses: the MSR filter then traps the counter numbers as MSR addresses, and the exit counts as RDPMC only when it
/// comes from a rewritten site.
class RdpmcGate {
 public:
  RdpmcGate(VcpuPort& port, Breakpoints& breakpoints, GuestView& view, RdpmcMethod method)
      : port_{&port}, breakpoints_{&breakpoints}, view_{&view}, method_{method} {}

  /// Arms or disarms. Finds the handler through the guest's IDT each time it arms: the table moves during boot.
  Result<void> update(bool in_use);

  /// Called for a breakpoint of ours at the gate. `value_of` answers RDPMC (ecx, cpl, CR4.PCE) or says #GP.
  using Answer = std::function<std::optional<std::uint64_t>(std::uint32_t ecx, unsigned cpl, bool pce)>;
  Result<void> on_fault_handler(const Answer& value_of);

  /// Whether an RDMSR exit of `index` is a rewritten RDPMC: asks for RIP only when the index could be a counter's.
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
  std::array<vpmu::GuestLinear, 16> sites_{};  ///< Rewritten instructions; more than any kernel has.
  unsigned site_count_{};
  RdpmcStatistics statistics_{};
};

}  // namespace vmm
