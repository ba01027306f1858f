#pragma once
#include "processor/soft_state.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// The kind of an event, as far as its delivery depends on it.
enum class EventKind : std::uint8_t {
  fault,     ///< RIP is that of the instruction; RF is set in the pushed flags.
  trap,      ///< RIP is after the instruction; also for interrupts.
  software,  ///< INT n, INT3: a trap, and the gate's DPL is checked.
};

/// Enters the handler of an exception or interrupt. SDM 3A 6.12, 6.14, 3B 20.1.4. A fault during delivery is delivered
/// instead, or #DF; false if that faults too: the processor shuts down. Changes only the registers, CR2, DR7.GD (#DB
/// clears it, 3B 17.2.4), interrupt shadows, which it ends, and the guest's stack. `length`: of the instruction before
/// RIP, for kind software.
[[nodiscard]] bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind,
                           std::uint8_t length = 0);

/// #PF of a failed access, with CR2 set; #GP for an address that is not canonical.
[[nodiscard]] Exception page_fault(SoftState& state, const vpmu::AccessFault& fault);

/// The same of an access to the stack: #SS for an address that is not canonical. SDM 3A 6.15, interrupt 12.
[[nodiscard]] Exception stack_exception(SoftState& state, const vpmu::AccessFault& fault);

}  // namespace vmm
