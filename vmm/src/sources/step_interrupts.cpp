#include "sources/step_source.hpp"

#include <linux/kvm.h>

#include <array>
#include <bit>
#include <cstring>

#include "support/x86.hpp"
#include "vcpu/handlers.hpp"

// Interrupts of a single-stepped vCPU. KVM holds them off during a single-step, so the source lets each in itself, with
// a breakpoint at the handler's first instruction.
namespace vmm {
namespace {

std::uint32_t lapic_word(const kvm_lapic_state& state, unsigned offset) {
  std::uint32_t word{};
  std::memcpy(&word, state.regs + offset, sizeof word);
  return word;
}

/// The interrupt that the LAPIC would deliver to the processor now. SDM 3A 10.8.4.
std::optional<unsigned> pending_vector(const kvm_lapic_state& state) {
  constexpr unsigned irr_offset = 0x200, ppr_offset = 0xA0;
  for (unsigned word = 8; word-- > 0;) {
    const std::uint32_t requested = lapic_word(state, irr_offset + word * 0x10);
    if (requested == 0) continue;
    const unsigned vector = word * 32 + (31 - static_cast<unsigned>(std::countl_zero(requested)));
    return (vector & 0xF0) > (lapic_word(state, ppr_offset) & 0xF0) ? std::optional{vector} : std::nullopt;
  }
  return std::nullopt;
}

std::optional<unsigned> vector_under_way(const kvm_vcpu_events& e) {
  if (e.exception.injected != 0) return e.exception.nr;
  if (e.nmi.injected != 0) return x86::vector::NMI;
  return e.interrupt.injected != 0 ? std::optional<unsigned>{e.interrupt.nr} : std::nullopt;
}

}  // namespace

// Single-steps hold interrupts off, so the source checks itself whether the processor would take one now. An event
// whose delivery has begun comes first: its delivery clears TF, so that a single-step would run its whole handler.
Result<std::optional<unsigned>> StepSource::deliverable(VcpuBackend& backend) {
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  if (const auto vector = vector_under_way(events)) return vector;
  if (events.interrupt.shadow != 0) return std::optional<unsigned>{};
  if (events.nmi.pending != 0 && events.nmi.masked == 0) return std::optional{x86::vector::NMI};
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  if (!x86::rflags::IF::test(regs.rflags)) return std::optional<unsigned>{};
  VMM_ASSIGN(const kvm_lapic_state lapic, backend.lapic());
  return pending_vector(lapic);
}

// The breakpoint is at the handler's first instruction, so nothing runs unobserved. It is set directly because the
// shared breakpoints hold interrupts off.
Result<RunEnd> StepSource::enter_handler(VcpuBackend& backend, unsigned vector) {
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  kvm_regs regs{};
  if (branches_) {
    VMM_ASSIGN(regs, backend.regs());
  }
  const auto to = handler_of(*view_, sregs, vector);
  if (!to) return run_free(backend, std::nullopt);
  kvm_guest_debug debug{};
  debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
  debug.arch.debugreg[0] = to->value();
  debug.arch.debugreg[7] = x86::dr7::fixed | x86::dr7::G0::mask;
  VMM_TRY(backend.set_guest_debug(debug));
  auto exit = backend.run_once();
  breakpoints_->end_step();
  breakpoints_->given_others();
  if (!exit) return Failure{exit.error()};
  const auto* stop = std::get_if<Debug>(&*exit);
  if (stop == nullptr || stop->pc != to->value()) return unexpected(*exit);
  ++statistics_.interrupts;
  VMM_ASSIGN(const auto branch,
             delivered(backend, {.at = instruction_pointer(regs, sregs), .cpl = cpl_of(sregs)}, *to));
  return RunEnd{.delivered = branch};
}

Result<std::optional<vpmu::TakenBranch>> StepSource::delivered(VcpuBackend& backend, const Origin& from,
                                                               vpmu::GuestLinear to) const {
  if (!branches_) return std::optional<vpmu::TakenBranch>{};
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  return std::optional{delivery(from.at, from.cpl, to, cpl_of(sregs))};
}

}  // namespace vmm
