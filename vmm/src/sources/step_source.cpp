#include "sources/step_source.hpp"

#include <linux/kvm.h>

#include <algorithm>

#include "vcpu/handlers.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned vector_bp = 3, vector_ud = 6, vector_gp = 13, vector_pf = 14;
/// How long the guest runs freely, where its code cannot be followed, before the source looks again.
constexpr std::chrono::nanoseconds lost_for = std::chrono::milliseconds{1};

/// Whether a single-step over the instruction would show TF to the guest, or stop one instruction too late: PUSHF,
/// POPF, STI, and loads of SS. SDM 3A 6.8.3.
bool hides_a_step(const Instruction& i) {
  constexpr std::uint8_t ss = 2;
  return i.stores_flags || i.is(SystemOp::popf) || i.is(SystemOp::sti) ||
         ((i.is(SystemOp::write_segment) || i.is(SystemOp::pop_segment)) && i.system->special == ss);
}

bool leaves_instruction_open(const Exit& exit) {
  return std::holds_alternative<MsrRead>(exit) || std::holds_alternative<CounterRead>(exit) ||
         std::holds_alternative<MsrWrite>(exit) || std::holds_alternative<PortRead>(exit) ||
         std::holds_alternative<PortWrite>(exit) || std::holds_alternative<MmioRead>(exit) ||
         std::holds_alternative<MmioWrite>(exit);
}

}  // namespace

Result<void> StepSource::program(const vpmu::CountPlan& plan) {
  counting_ = plan.size != 0 || plan.branches_wanted;
  branches_ = plan.branches_wanted;
  return {};
}

Result<vpmu::CountDeltas> StepSource::sync(VcpuPort&) { return vpmu::CountDeltas{}; }

Result<RunEnd> StepSource::run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  if (counting_) return advance(port, at_most, Interrupts::look);
  waiting_.reset();
  return run_free(port, at_most);
}

Result<RunEnd> StepSource::run_one(VcpuPort& port) { return advance(port, std::nullopt, Interrupts::looked_for); }

Result<RunEnd> StepSource::walk(VcpuPort& port) { return advance(port, std::nullopt, Interrupts::look); }

Result<RunEnd> StepSource::run_free(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  if (at_most) VMM_TRY(timer_->arm_wall(*at_most));
  breakpoints_->end_step();
  VMM_TRY(breakpoints_->apply());
  VMM_ASSIGN(const Exit exit, port.run());
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

Result<RunEnd> StepSource::advance(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most,
                                   Interrupts interrupts) {
  VMM_ASSIGN(auto finished, finish_exit(port));
  if (finished) return *finished;
  if (interrupts == Interrupts::look) {
    VMM_ASSIGN(const auto interrupt, deliverable(port));
    if (interrupt) return enter_handler(port, *interrupt);
  }
  VMM_ASSIGN(const bool halted, port.halted());
  if (halted) return wait(port, at_most);
  VMM_ASSIGN(const Current current, decode(port));
  if (current.instruction.length == 0)
    return run_into_fault(port, current.fetched < current.bytes.size() ? vector_pf : vector_ud, place_of(current));
  return pass(port, current);
}

// An event that ends the halt is held off until the vCPU stops at the instruction after HLT; otherwise the handler
// would run unobserved. The result is empty when the halt has ended.
Result<RunEnd> StepSource::wait(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  if (at_most) VMM_TRY(timer_->arm_wall(*at_most));
  VMM_ASSIGN(const kvm_regs regs, port.regs());
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  const auto at = instruction_pointer(regs, sregs);
  VMM_ASSIGN(const Exit exit, run_to(port, at));
  const auto* debug = std::get_if<Debug>(&exit);
  if (debug != nullptr && debug->pc == at.value()) return RunEnd{};
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

// An instruction that caused an exit retires once the VMM has answered it, unless it faulted.
Result<std::optional<RunEnd>> StepSource::finish_exit(VcpuPort& port) {
  if (exit_open_) {
    VMM_TRY(port.complete_exit());
    exit_open_ = false;
  }
  if (!waiting_) return std::optional<RunEnd>{};
  const Current current = *std::exchange(waiting_, std::nullopt);
  VMM_ASSIGN(const kvm_regs after, port.regs());
  if (after.rip != current.regs.rip + current.instruction.length) return std::optional<RunEnd>{};
  VMM_ASSIGN(RunEnd end, retire(port, current, after));
  return std::optional{end};
}

Result<StepSource::Current> StepSource::decode(VcpuPort& port) {
  Current current{};
  VMM_ASSIGN(current.regs, port.regs());
  VMM_ASSIGN(current.sregs, port.sregs());
  const auto at = instruction_pointer(current.regs, current.sregs);
  current.fetched = view_->fetch(at, current.bytes, cpl_of(current.sregs));
  if (const auto instruction =
          decode_instruction(std::span{current.bytes}.first(current.fetched), code_mode(current.sregs)))
    current.instruction = *instruction;
  return current;
}

Result<RunEnd> StepSource::pass(VcpuPort& port, const Current& current) {
  const auto at = instruction_pointer(current.regs, current.sregs);
  const auto next = at + current.instruction.length;
  const bool user = cpl_of(current.sregs) != 0;
  if (const auto fault = foreseen_fault(current)) return run_into_fault(port, *fault, place_of(current));
  const Instruction& i = current.instruction;
  // A single-step would stop after each iteration, but the instruction retires once (rule C5).
  if (i.rep || hides_a_step(i)) return run_over(port, current, next);
  if (!i.system) return step(port, current);
  const auto is_any = [&](auto... ops) { return (i.is(ops) || ...); };
  const bool moves_debug_register = is_any(SystemOp::read_debug, SystemOp::write_debug);
  if (user && (moves_debug_register || is_any(SystemOp::rdmsr, SystemOp::wrmsr)))
    return run_into_fault(port, vector_gp, place_of(current));
  if (moves_debug_register) return move_debug_register(port, current);
  if (i.is(SystemOp::ud2)) return run_into_fault(port, vector_ud, place_of(current));
  if (i.is(SystemOp::rdpmc)) return read_counter(port, current);
  if (i.is(SystemOp::iret)) return return_from_handler(port, current);
  if (i.is(SystemOp::int1)) return raise_debug(port, current);
  if (i.is(SystemOp::int3)) return enter_by(port, current, vector_bp);
  if (i.is(SystemOp::int_n)) return enter_by(port, current, i.system->immediate);
  // SYSCALL would save the single-step's TF in R11; SYSRET would load TF from there.
  if (i.is(SystemOp::syscall)) return enter_kernel(port, current);
  if (i.is(SystemOp::sysret)) return return_to(port, current, vpmu::GuestLinear{current.regs.rcx}, 3);
  return step(port, current);
}

Result<RunEnd> StepSource::step(VcpuPort& port, const Current& current) {
  VMM_ASSIGN(const Exit exit, run_stopped(port, current));
  if (const auto* debug = std::get_if<Debug>(&exit); debug != nullptr && debug->exception == 1)
    return stepped(port, current, *debug);
  // Otherwise KVM would end the completion of the exit with a single-step. The vCPU loop applies this change.
  breakpoints_->end_step();
  if (!leaves_instruction_open(exit)) return unexpected(exit);
  exit_open_ = true;
  if (!std::holds_alternative<MsrWrite>(exit)) {
    waiting_ = current;
    return RunEnd{.exit = exit};
  }
  // Retired before the write takes effect: a write that stops counting is counted, one that starts it is not.
  kvm_regs after = current.regs;
  after.rip += current.instruction.length;
  return retire(port, current, after, exit);
}

// Runs to a breakpoint after the instruction, without TF and with interrupts held off. A trap before that breakpoint is
// the guest's own.
Result<RunEnd> StepSource::run_over(VcpuPort& port, const Current& current, vpmu::GuestLinear to) {
  VMM_ASSIGN(const Exit exit, run_to(port, to));
  const auto* debug = std::get_if<Debug>(&exit);
  const auto at = instruction_pointer(current.regs, current.sregs);
  if (debug != nullptr && debug->exception == 1 && debug->pc == at.value()) return stepped(port, current, *debug);
  if (debug == nullptr || debug->pc != to.value()) return unexpected(exit);
  ++statistics_.run_over;
  VMM_ASSIGN(const kvm_regs after, port.regs());
  VMM_ASSIGN(const std::optional<Debug> guests, breakpoints_->guests_part(*debug));
  return retire(port, current, after, guests ? std::optional<Exit>{*guests} : std::nullopt);
}

// If the target is not mapped, a breakpoint there would only hit after the guest's kernel has mapped it.
Result<RunEnd> StepSource::return_to(VcpuPort& port, const Current& current, vpmu::GuestLinear to, unsigned cpl) {
  std::array<std::byte, 1> first{};
  if (view_->fetch(to, first, cpl) != 0) return run_over(port, current, to);
  VMM_ASSIGN(const RunEnd fault, run_into_fault(port, vector_pf, {.at = to, .cpl = cpl}));
  if (fault.exit) return fault;
  kvm_regs after = current.regs;
  after.rip = to.value();
  RunEnd end = retire_at(current, after, cpl);
  end.delivered = fault.delivered;
  return end;
}

// SDM 2B SYSCALL: faults if EFER.SCE is 0.
Result<RunEnd> StepSource::enter_kernel(VcpuPort& port, const Current& current) {
  constexpr std::uint32_t msr_lstar = 0xC000'0082;
  constexpr std::uint64_t efer_sce = 1;
  if ((current.sregs.efer & efer_sce) == 0) return run_into_fault(port, vector_ud, place_of(current));
  VMM_ASSIGN(const std::uint64_t to, port.msr(msr_lstar));
  return run_over(port, current, vpmu::GuestLinear{to});
}

// The result has no exit: the guest is at the handler.
Result<RunEnd> StepSource::run_into_fault(VcpuPort& port, unsigned vector, const Place& from) {
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  const auto to = handler_of(*view_, sregs, vector);
  if (!to) {
    ++statistics_.lost;
    return run_free(port, lost_for);
  }
  VMM_ASSIGN(const Exit exit, run_to(port, *to));
  const auto* debug = std::get_if<Debug>(&exit);
  if (debug == nullptr || debug->pc != to->value()) return unexpected(exit);
  ++statistics_.faults;
  VMM_ASSIGN(const auto branch, delivered(port, from, *to));
  return RunEnd{.delivered = branch};
}

// KVM raises #GP for RDPMC, and the RDPMC gate answers it. The instruction retires when the gate has advanced RIP.
Result<RunEnd> StepSource::read_counter(VcpuPort& port, const Current& current) {
  const auto next = instruction_pointer(current.regs, current.sregs) + current.instruction.length;
  VMM_ASSIGN(const Exit exit, run_to(port, next));
  waiting_ = current;
  const auto* debug = std::get_if<Debug>(&exit);
  exit_open_ = leaves_instruction_open(exit);
  if (debug != nullptr && debug->pc == next.value()) return RunEnd{};  // a KVM that answers RDPMC itself
  return RunEnd{.exit = exit};
}

Result<Exit> StepSource::run_to(VcpuPort& port, const Stops& stops) {
  breakpoints_->set_walk(stops);
  VMM_TRY(breakpoints_->apply());
  auto exit = port.run();
  breakpoints_->set_walk({});
  return exit;
}

std::optional<unsigned> StepSource::foreseen_fault(const Current& current) {
  const auto at = instruction_pointer(current.regs, current.sregs);
  const auto fault_of = [&](const std::optional<MemoryOperand>& m, vpmu::AccessKind kind) -> std::optional<unsigned> {
    if (!m) return std::nullopt;
    const auto address = operand_address(*m, current.instruction, at, current.regs, current.sregs);
    const auto fault = view_->probe_current(address, m->bytes > 0 ? m->bytes : 1, kind);
    if (!fault || fault->not_memory) return std::nullopt;  // no RAM: a device's registers
    return vpmu::is_canonical(address.value(), 48) ? vector_pf : vector_gp;
  };
  if (auto fault = fault_of(current.instruction.read(), vpmu::AccessKind::read)) return fault;
  return fault_of(current.instruction.store, vpmu::AccessKind::write);
}

bool StepSource::is_of_a_device(const Current& current, vpmu::GuestLinear at) {
  const auto fault = view_->probe_current(at, current.instruction.load->bytes > 0 ? current.instruction.load->bytes : 1,
                                          vpmu::AccessKind::read);
  return fault && fault->not_memory;
}

Result<RunEnd> StepSource::retire(VcpuPort& port, const Current& current, const kvm_regs& after,
                                  std::optional<Exit> exit) {
  VMM_ASSIGN(const unsigned cpl, target_cpl(port, current));
  return retire_at(current, after, cpl, std::move(exit));
}

RunEnd StepSource::retire_at(const Current& current, const kvm_regs& after, unsigned target_cpl,
                             std::optional<Exit> exit) {
  ++statistics_.retired;
  Retired retired = retired_instruction(current.instruction, current.regs, current.sregs, after, 1, target_cpl);
  if (retired.what.has_load && is_of_a_device(current, retired.what.load.address))
    retired.what.load.level = vpmu::HitLevel::uncached;
  return RunEnd{.exit = std::move(exit), .retired = retired};
}

/// The privilege level that the instruction led to. Needed only if branches are wanted; only a far branch changes it.
Result<unsigned> StepSource::target_cpl(VcpuPort& port, const Current& current) const {
  if (!branches_ || current.instruction.branch != vpmu::BranchKind::far) return cpl_of(current.sregs);
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  return cpl_of(sregs);
}

StepSource::Place StepSource::place_of(const Current& current) {
  return {.at = instruction_pointer(current.regs, current.sregs), .cpl = cpl_of(current.sregs)};
}

// Any exit but a kick or the end of the machine means that the source has lost track of the guest.
RunEnd StepSource::unexpected(const Exit& exit) {
  if (!std::holds_alternative<Interrupted>(exit)) ++statistics_.lost;
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

void StepSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.step.retired", statistics_.retired);
  visit("pmu.step.run_over", statistics_.run_over);
  visit("pmu.step.interrupts", statistics_.interrupts);
  visit("pmu.step.faults", statistics_.faults);
  visit("pmu.step.lost", statistics_.lost);
}

}  // namespace vmm
