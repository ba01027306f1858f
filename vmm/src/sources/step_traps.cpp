// Exceptions around an instruction that the step source runs: the instruction's own, traps of a guest that single-steps
// itself, and those caused by the source's single-step.
#include <algorithm>
#include <array>

#include "processor/debug_registers.hpp"
#include "sources/step_source.hpp"
#include "sources/trap_flag.hpp"
#include "support/x86.hpp"
#include "vcpu/debug_moves.hpp"
#include "vcpu/handlers.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t dr6_reasons = x86::dr6::B::mask | x86::dr6::BD::mask | x86::dr6::BS::mask;

}  // namespace

bool StepSource::is_stepped_by_guest(const Current& current) { return x86::rflags::TF::test(current.regs.rflags); }

// If the guest single-steps itself, its own trap ends the instruction, as a single-step of ours would take TF from it.
// After an instruction that KVM has emulated, KVM delivers that trap itself.
Result<Exit> StepSource::run_stopped(VcpuBackend& backend, const Current& current) {
  const auto at = instruction_pointer(current.regs, current.sregs);
  const Stops faults = handlers_of_faults(*view_, current.sregs, at, current.instruction.raises);
  if (is_stepped_by_guest(current)) {
    // With DEBUGCTL.BTF only a taken branch traps. SDM 3B 17.4.3.
    Stops stops{at + current.instruction.length};
    if (const auto trap = handler_of(*view_, current.sregs, x86::vector::DB); trap != at) stops.add(trap);
    if (faults.size != 0) stops.add(faults.at[0]);
    return run_to(backend, stops);
  }
  breakpoints_->arm_step(faults);
  VMM_TRY(breakpoints_->apply());
  const Instruction& i = current.instruction;
  if (i.quiet) return backend.step();
  const bool may_read_time = !i.system || i.is(SystemOp::rdtsc) || i.is(SystemOp::rdmsr) || i.is(SystemOp::hlt);
  return may_read_time ? backend.run() : backend.run_once();
}

// The instruction has retired, or hit one of the guest's breakpoints, or faulted and is at a handler.
Result<RunEnd> StepSource::stepped(VcpuBackend& backend, const Current& current, const Debug& debug) {
  VMM_ASSIGN(kvm_regs after, backend.regs());
  const bool trapped = x86::dr6::BS::test(debug.dr6);
  const bool here = after.rip == current.regs.rip;
  // Not executed: SDM 3B 17.3.1.1. Or only in part: an iteration of a string instruction.
  if (here && (!trapped || (current.instruction.rep && is_stepped_by_guest(current)))) {
    Debug theirs = debug;
    theirs.of_guest = trapped;
    return RunEnd{.exit = theirs};
  }
  const std::uint64_t next = current.regs.rip + current.instruction.length;
  const auto at = instruction_pointer(after, current.sregs);
  if (is_stepped_by_guest(current) && !trapped && at == handler_of(*view_, current.sregs, x86::vector::DB)) {
    VMM_ASSIGN(const auto branch, delivered(backend, origin_of(current), at));
    after.rip = next;
    after.rsp = current.regs.rsp;
    after.rflags = current.regs.rflags;
    VMM_ASSIGN(RunEnd end, retire(backend, current, after));
    end.delivered = branch;
    return end;
  }
  const bool elsewhere = after.rip != next;
  const bool at_handler = !trapped && (breakpoints_->stops_at(at) || current.instruction.rep);
  if (elsewhere && (!current.instruction.ends_block || at_handler)) return faulted(backend, current, after);
  VMM_ASSIGN(const std::optional<Debug> guests, breakpoints_->guests_part(debug));
  return retire(backend, current, after, guests ? std::optional<Exit>{*guests} : std::nullopt);
}

// An instruction that did not retire although no fault was foreseen.
Result<RunEnd> StepSource::faulted(VcpuBackend& backend, const Current& current, const kvm_regs& after) {
  // #DE, #UD, #NM, #NP, #SS, #GP, #PF, #MF, #AC, #XM. SDM 3A table 6-1.
  constexpr std::array<unsigned, 10> faults{x86::vector::DE,
                                            x86::vector::UD,
                                            7,
                                            x86::vector::NP,
                                            x86::vector::SS,
                                            x86::vector::GP,
                                            x86::vector::PF,
                                            16,
                                            17,
                                            19};
  const bool at_handler = std::ranges::any_of(
      faults, [&](unsigned v) { return handler_of(*view_, current.sregs, v) == vpmu::GuestLinear{after.rip}; });
  ++(at_handler ? statistics_.faults : statistics_.lost);
  if (!at_handler) return RunEnd{};
  if (!is_stepped_by_guest(current)) take_trap_flag_back(*view_, after, current.regs.rip);
  VMM_ASSIGN(const auto branch, delivered(backend, origin_of(current), vpmu::GuestLinear{after.rip}));
  return RunEnd{.delivered = branch};
}

Result<RunEnd> StepSource::enter_by(VcpuBackend& backend, const Current& current, unsigned vector) {
  const auto to = handler_of(*view_, current.sregs, vector);
  return to ? run_over(backend, current, *to) : run_into_fault(backend, x86::vector::GP, origin_of(current));
}

// Emulated in KVM's place, as DebugMoves also does while nothing counts. An exception that it raises is delivered
// before the next instruction.
Result<RunEnd> StepSource::move_debug_register(VcpuBackend& backend, const Current& current) {
  const auto at = instruction_pointer(current.regs, current.sregs);
  VMM_ASSIGN(const kvm_debugregs debug, backend.debugregs());
  const std::uint64_t hits =
      x86::rflags::RF::test(current.regs.rflags) ? 0 : execution_hits(watch_of(debug), at.value());
  if (hits != 0)
    return RunEnd{.exit =
                      Debug{.exception = x86::vector::DB, .pc = at.value(), .dr6 = hits, .dr7 = 0, .of_guest = true}};
  VMM_ASSIGN(const bool done, (DebugMoves{backend, *breakpoints_, *view_}.run()));
  if (!done) return RunEnd{};
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  return retire(backend, current, after);
}

// INT1: its #DB exits with no reason bit in DR6, at or after the instruction; a back end may also deliver it itself.
Result<RunEnd> StepSource::raise_debug(VcpuBackend& backend, const Current& current) {
  const auto to = handler_of(*view_, current.sregs, x86::vector::DB);
  VMM_ASSIGN(const Exit exit, run_to(backend, to ? Stops{*to} : Stops{}));
  const auto* debug = std::get_if<Debug>(&exit);
  if (debug == nullptr || debug->exception != 1) return unexpected(exit);
  VMM_ASSIGN(kvm_regs after, backend.regs());
  if (to && debug->pc == to->value()) return retire(backend, current, after);
  if ((debug->dr6 & dr6_reasons) != 0) return stepped(backend, current, *debug);
  after.rip = current.regs.rip + current.instruction.length;
  VMM_TRY(backend.set_regs(after));
  Debug theirs = *debug;
  theirs.of_guest = true;
  return retire(backend, current, after, theirs);
}

// A fault's frame has RF set, which would suppress our breakpoint at the target: RF is cleared in the frame, and set
// again after IRET.
Result<RunEnd> StepSource::return_from_handler(VcpuBackend& backend, const Current& current) {
  std::array<std::uint64_t, 3> frame{};  // RIP, CS, RFLAGS
  const vpmu::GuestLinear at{current.regs.rsp};
  if (view_->read(at, std::as_writable_bytes(std::span{frame})))
    return run_into_fault(backend, x86::vector::PF, origin_of(current));
  const vpmu::GuestLinear to{frame[0]};
  const std::uint64_t flags = frame[2], without = flags & ~x86::rflags::RF::mask;
  const auto put = [&](const std::uint64_t& value) {
    return !view_->write(at + 2 * sizeof value, std::as_bytes(std::span{&value, 1}));
  };
  if (flags == without || !put(without)) return return_to(backend, current, to, frame[1] & 3);
  auto end = return_to(backend, current, to, frame[1] & 3);
  (void)put(flags);  // restore the frame
  if (!end) return end;
  VMM_ASSIGN(kvm_regs after, backend.regs());
  if (!end->retired || instruction_pointer(after, current.sregs) != to) return end;
  after.rflags |= x86::rflags::RF::mask;
  VMM_TRY(backend.set_regs(after));
  return end;
}

}  // namespace vmm
