#pragma once
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

struct DebugMoveStatistics {
  std::uint64_t done{};         ///< MOV to and from debug registers that were emulated.
  std::uint64_t let_through{};  ///< Other #DB at the guest's handler, passed to the guest.
};

/// Emulates MOV to and from debug registers. While breakpoints of ours are in these, KVM does not apply the guest's
/// writes until the next entry. So Breakpoints makes each such instruction exit.
class DebugMoves {
 public:
  DebugMoves(VcpuBackend& backend, Breakpoints& breakpoints, GuestView& view)
      : backend_{&backend}, breakpoints_{&breakpoints}, view_{&view} {}

  /// Whether the vCPU is at such an instruction, in ring 0.
  Result<bool> is_next();
  /// Emulates it, or raises its exception: #UD, #GP or, if the guest has set DR7.GD, #DB. True if it has retired. SDM
  /// 2B MOV to/from debug registers.
  Result<bool> run();
  /// The vCPU is at the guest's #DB handler. Undoes a #DB that only our DR7.GD has raised, and emulates the
  /// instruction; passes any other #DB to the guest.
  Result<void> on_debug_handler();

  [[nodiscard]] const DebugMoveStatistics& statistics() const { return statistics_; }

 private:
  Result<bool> raise(unsigned vector, bool has_error_code);

  VcpuBackend* backend_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  DebugMoveStatistics statistics_{};
};

}  // namespace vmm
