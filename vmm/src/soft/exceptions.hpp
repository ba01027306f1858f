#pragma once
#include "soft/soft_state.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// How an event came about, as far as its delivery cares.
enum class EventKind : std::uint8_t {
  fault,     ///< RIP is that of the instruction; RF is set in what is pushed.
  trap,      ///< RIP is behind the instruction, or an interrupt's.
  software,  ///< INT n, INT3: a trap, and the gate's privilege level counts.
};

/// Enters the handler of an exception or interrupt in 64-bit mode. SDM 3A 6.14. A fault on the way becomes #DF; false
/// when that faults too: the processor shuts down. Changes nothing but the registers, CR2 and the guest's stack.
[[nodiscard]] bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind);

/// IRETQ. Empty when done; else the exception that it raises, with nothing changed. To outer or the same privilege
/// only. SDM 2A IRET.
[[nodiscard]] std::optional<Exception> return_from_interrupt(SoftState& state, GuestView& view);
/// RETFQ without an operand, to the same privilege.
[[nodiscard]] std::optional<Exception> far_return(SoftState& state, GuestView& view);

/// SYSCALL from the instruction before `next`, and SYSRET to 64-bit code. SDM 2B SYSCALL, SYSRET. The caller has
/// checked EFER.SCE and CPL.
void system_call(SoftState& state, std::uint64_t next);
[[nodiscard]] std::optional<Exception> system_return(SoftState& state);

/// #PF of a failed access, with CR2 set; #GP for an address that is not canonical.
[[nodiscard]] Exception page_fault(SoftState& state, const vpmu::AccessFault& fault);

}  // namespace vmm
