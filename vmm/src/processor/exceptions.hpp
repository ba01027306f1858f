#pragma once
#include "processor/soft_state.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// How an event came about, as far as its delivery cares.
enum class EventKind : std::uint8_t {
  fault,     ///< RIP is that of the instruction; RF is set in what is pushed.
  trap,      ///< RIP is behind the instruction, or an interrupt's.
  software,  ///< INT n, INT3: a trap, and the gate's privilege level counts.
};

/// Enters the handler of an exception or interrupt. SDM 3A 6.12, 6.14, 3B 20.1.4. A fault on the way is
/// delivered in its place, or #DF; false when that faults too: the processor shuts down. Changes nothing but the
/// registers, CR2, DR7.GD (#DB clears it, 3B 17.2.4) and the guest's stack. `length`: of the instruction that RIP is
/// behind, of kind software.
[[nodiscard]] bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind,
                           std::uint8_t length = 0);

/// #PF of a failed access, with CR2 set; #GP for an address that is not canonical.
[[nodiscard]] Exception page_fault(SoftState& state, const vpmu::AccessFault& fault);

}  // namespace vmm
