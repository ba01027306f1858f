#pragma once
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

struct DebugMoveStatistics {
  std::uint64_t done{};         ///< MOV to and from debug registers that were done for the guest.
  std::uint64_t let_through{};  ///< #DB that had nothing to do with them, at the guest's handler.
};

/// MOV to and from debug registers. While breakpoints of ours stand in these, KVM keeps what the guest writes to itself
/// until the next entry: so each such instruction must come to us (Breakpoints), and is done here.
class DebugMoves {
 public:
  DebugMoves(VcpuPort& port, Breakpoints& breakpoints, GuestView& view)
      : port_{&port}, breakpoints_{&breakpoints}, view_{&view} {}

  /// Whether the vCPU stands at one, in ring 0.
  Result<bool> is_next();
  /// Does it, or raises what it would: #UD, #GP or, with DR7.GD of the guest, #DB. True when it has retired. SDM 2B MOV
  /// to/from debug registers.
  Result<bool> run();
  /// The vCPU stands at the guest's #DB handler: takes back a #DB that only DR7.GD of ours has raised, and does the
  /// instruction; lets every other one through.
  Result<void> on_debug_handler();

  [[nodiscard]] const DebugMoveStatistics& statistics() const { return statistics_; }

 private:
  Result<bool> raise(unsigned vector, bool has_error_code);

  VcpuPort* port_;
  Breakpoints* breakpoints_;
  GuestView* view_;
  DebugMoveStatistics statistics_{};
};

}  // namespace vmm
