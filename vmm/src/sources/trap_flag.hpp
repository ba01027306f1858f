#pragma once
#include "decode/instruction.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// A single-step sets RFLAGS.TF, and a fault of the stepped instruction pushes it with the guest's flags: its handler
/// must be stopped at, and the flag taken out of what was pushed.

/// The handlers of the faults that the instruction at `at` may raise though its operands are there; not `at` itself.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at, Raises raises);

/// At the first instruction of a handler, to which the instruction at `rip` has led: clears TF in the pushed flags.
void take_trap_flag_back(GuestView& view, const kvm_regs& at_handler, std::uint64_t rip);

}  // namespace vmm
