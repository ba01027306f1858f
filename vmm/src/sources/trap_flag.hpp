#pragma once
#include "decode/instruction.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// A single-step sets RFLAGS.TF, and a fault of the stepped instruction pushes TF with the guest's flags. The guest
/// must be stopped at the fault's handler, and TF cleared in the pushed flags.

/// Handlers of faults that the instruction at `at` may raise even if its operands are mapped; excludes `at` itself.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at, Raises raises);

/// To be called at the first instruction of a handler, after a fault at `rip`: clears TF in the pushed flags.
void take_trap_flag_back(GuestView& view, const kvm_regs& at_handler, std::uint64_t rip);

}  // namespace vmm
