#include "sources/step_source.hpp"

#include <linux/kvm.h>

#include <algorithm>

#include "support/x86.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// How long the guest runs freely, where its code cannot be followed, before the source looks again.
constexpr std::chrono::nanoseconds lost_for = std::chrono::milliseconds{1};

bool loads_ss(const Instruction& i) {
  constexpr std::uint8_t ss = 2;
  return (i.is(SystemOp::write_segment) || i.is(SystemOp::pop_segment)) && i.system->special == ss;
}

/// Whether a single-step over the instruction would show TF to the guest, or stop one instruction too late: PUSHF,
/// POPF, STI, and loads of SS. SDM 3A 6.8.3.
bool hides_a_step(const Instruction& i) {
  return i.stores_flags || i.is(SystemOp::popf) || i.is(SystemOp::sti) || loads_ss(i);
}

bool leaves_instruction_open(const Exit& exit) {
  return std::holds_alternative<MsrRead>(exit) || std::holds_alternative<CounterRead>(exit) ||
         std::holds_alternative<MsrWrite>(exit) || std::holds_alternative<PortRead>(exit) ||
         std::holds_alternative<PortWrite>(exit) || std::holds_alternative<MmioRead>(exit) ||
         std::holds_alternative<MmioWrite>(exit);
}

}  // namespace

Result<void> StepSource::program(const vpmu::CountPlan& plan) {
  counting_ = plan.size != 0 || plan.branches_wanted || plan.caches_wanted;
  branches_ = plan.branches_wanted;
  return {};
}

Result<vpmu::CountDeltas> StepSource::sync(VcpuBackend&) { return vpmu::CountDeltas{}; }

Result<RunEnd> StepSource::run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  if (counting_) return advance(backend, at_most, Interrupts::look);
  waiting_.reset();
  return run_free(backend, at_most);
}

Result<RunEnd> StepSource::run_one(VcpuBackend& backend) {
  return advance(backend, std::nullopt, Interrupts::looked_for);
}

Result<RunEnd> StepSource::run_left(VcpuBackend& backend, const LeftByEngine& left, const Instruction* next) {
  if (!backend.runs_left()) return run_one(backend);
  breakpoints_->end_step();
  VMM_TRY(breakpoints_->apply());
  Current current{};
  if (next != nullptr) current.instruction = *next;
  VMM_ASSIGN(current.regs, backend.regs());
  VMM_ASSIGN(current.sregs, backend.sregs());
  const LeftRun ran = backend.run_left(left);
  if (ran.exit) return unexpected(*ran.exit);
  switch (ran.end) {
    case LeftRun::End::not_run: return run_one(backend);
    case LeftRun::End::retired: {
      VMM_ASSIGN(const kvm_regs after, backend.regs());
      return retire(backend, current, after);
    }
    case LeftRun::End::delivered: break;
  }
  ++statistics_.faults;
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  VMM_ASSIGN(const auto branch, delivered(backend, origin_of(current), vpmu::GuestLinear{after.rip}));
  return RunEnd{.delivered = branch};
}

Result<RunEnd> StepSource::walk(VcpuBackend& backend) { return advance(backend, std::nullopt, Interrupts::look); }

Result<RunEnd> StepSource::run_free(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  if (at_most) VMM_TRY(timer_->arm_wall(*at_most));
  breakpoints_->end_step();
  VMM_TRY(breakpoints_->apply());
  VMM_ASSIGN(const Exit exit, backend.run());
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

Result<RunEnd> StepSource::advance(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most,
                                   Interrupts interrupts) {
  clocks_.follow(backend.tsc_khz());
  VMM_ASSIGN(auto finished, finish_exit(backend));
  if (finished) return *finished;
  if (interrupts == Interrupts::look) {
    VMM_ASSIGN(const auto interrupt, deliverable(backend));
    if (interrupt) return enter_handler(backend, *interrupt);
  }
  VMM_ASSIGN(const bool halted, backend.halted());
  if (halted) return wait(backend, at_most);
  VMM_ASSIGN(const Current current, decode(backend));
  if (current.instruction.length == 0)
    return run_into_fault(backend, current.fetched < current.bytes.size() ? x86::vector::PF : x86::vector::UD,
                          origin_of(current));
  return pass(backend, current);
}

// An event that ends the halt is held off until the vCPU stops at the instruction after HLT; otherwise the handler
// would run unobserved. The result is empty when the halt has ended.
Result<RunEnd> StepSource::wait(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  if (at_most) VMM_TRY(timer_->arm_wall(*at_most));
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  const auto at = instruction_pointer(regs, sregs);
  VMM_ASSIGN(const Exit exit, run_to(backend, at));
  const auto* debug = std::get_if<Debug>(&exit);
  if (debug != nullptr && debug->pc == at.value()) return RunEnd{};
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

// An instruction that caused an exit retires once the VMM has answered it, unless it faulted.
Result<std::optional<RunEnd>> StepSource::finish_exit(VcpuBackend& backend) {
  if (exit_open_) {
    VMM_TRY(backend.complete_exit());
    exit_open_ = false;
  }
  if (!waiting_) return std::optional<RunEnd>{};
  const Current current = *std::exchange(waiting_, std::nullopt);
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  if (after.rip != current.regs.rip + current.instruction.length) return std::optional<RunEnd>{};
  VMM_ASSIGN(RunEnd end, retire(backend, current, after));
  return std::optional{end};
}

Result<StepSource::Current> StepSource::decode(VcpuBackend& backend) {
  Current current{};
  VMM_ASSIGN(current.regs, backend.regs());
  VMM_ASSIGN(current.sregs, backend.sregs());
  const auto at = instruction_pointer(current.regs, current.sregs);
  current.fetched = view_->fetch(at, current.bytes, cpl_of(current.sregs));
  if (const auto instruction =
          decode_instruction(std::span{current.bytes}.first(current.fetched), code_mode(current.sregs)))
    current.instruction = *instruction;
  return current;
}

Result<RunEnd> StepSource::pass(VcpuBackend& backend, const Current& current) {
  const auto at = instruction_pointer(current.regs, current.sregs);
  const auto next = at + current.instruction.length;
  const bool user = cpl_of(current.sregs) != 0;
  if (const auto fault = foreseen_fault(current)) return run_into_fault(backend, *fault, origin_of(current));
  const Instruction& i = current.instruction;
  // A single-step would stop after each iteration, but the instruction retires once (rule C5).
  // A processor also suppresses our breakpoint behind a load of SS. The guest must not run on with interrupts held off.
  if (loads_ss(i)) VMM_TRY(timer_->arm_wall(lost_for));
  if (i.rep || hides_a_step(i)) return run_over(backend, current, next);
  if (!i.system) return step(backend, current);
  const auto is_any = [&](auto... ops) { return (i.is(ops) || ...); };
  const bool moves_debug_register = is_any(SystemOp::read_debug, SystemOp::write_debug);
  if (user && (moves_debug_register || is_any(SystemOp::rdmsr, SystemOp::wrmsr)))
    return run_into_fault(backend, x86::vector::GP, origin_of(current));
  if (moves_debug_register) return move_debug_register(backend, current);
  if (i.is(SystemOp::ud)) return run_into_fault(backend, x86::vector::UD, origin_of(current));
  if (i.is(SystemOp::rdpmc)) return read_counter(backend, current);
  if (i.is(SystemOp::iret)) return return_from_handler(backend, current);
  if (i.is(SystemOp::int1)) return raise_debug(backend, current);
  if (i.is(SystemOp::int3)) return enter_by(backend, current, x86::vector::BP);
  if (i.is(SystemOp::int_n)) return enter_by(backend, current, i.system->immediate);
  // SYSCALL would save the single-step's TF in R11; SYSRET would load TF from there.
  if (i.is(SystemOp::syscall)) return enter_kernel(backend, current);
  if (i.is(SystemOp::sysret)) return return_to(backend, current, vpmu::GuestLinear{current.regs.rcx}, 3);
  return step(backend, current);
}

Result<RunEnd> StepSource::step(VcpuBackend& backend, const Current& current) {
  VMM_ASSIGN(const Exit exit, run_stopped(backend, current));
  if (const auto* debug = std::get_if<Debug>(&exit); debug != nullptr && debug->exception == 1)
    return stepped(backend, current, *debug);
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
  return retire(backend, current, after, exit);
}

// Runs to a breakpoint after the instruction, without TF and with interrupts held off. A trap before that breakpoint is
// the guest's own.
Result<RunEnd> StepSource::run_over(VcpuBackend& backend, const Current& current, vpmu::GuestLinear to) {
  VMM_ASSIGN(const Exit exit, run_to(backend, to));
  const auto* debug = std::get_if<Debug>(&exit);
  const auto at = instruction_pointer(current.regs, current.sregs);
  if (debug != nullptr && debug->exception == 1 && debug->pc == at.value()) return stepped(backend, current, *debug);
  if (debug == nullptr || debug->pc != to.value()) return unexpected(exit);
  ++statistics_.run_over;
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  VMM_ASSIGN(const std::optional<Debug> guests, breakpoints_->guests_part(*debug));
  return retire(backend, current, after, guests ? std::optional<Exit>{*guests} : std::nullopt);
}

// If the target is not mapped, a breakpoint there would only hit after the guest's kernel has mapped it.
Result<RunEnd> StepSource::return_to(VcpuBackend& backend, const Current& current, vpmu::GuestLinear to, unsigned cpl) {
  std::array<std::byte, 1> first{};
  if (view_->fetch(to, first, cpl) != 0) return run_over(backend, current, to);
  VMM_ASSIGN(const RunEnd fault, run_into_fault(backend, x86::vector::PF, {.at = to, .cpl = cpl}));
  if (fault.exit) return fault;
  kvm_regs after = current.regs;
  after.rip = to.value();
  RunEnd end = retire_at(current, after, cpl);
  end.delivered = fault.delivered;
  return end;
}

// SDM 2B SYSCALL: faults if EFER.SCE is 0.
Result<RunEnd> StepSource::enter_kernel(VcpuBackend& backend, const Current& current) {
  if (!x86::efer::SCE::test(current.sregs.efer)) return run_into_fault(backend, x86::vector::UD, origin_of(current));
  VMM_ASSIGN(const std::uint64_t to, backend.msr(vpmu::msr::IA32_LSTAR.value()));
  return run_over(backend, current, vpmu::GuestLinear{to});
}

// The result has no exit: the guest is at the handler.
Result<RunEnd> StepSource::run_into_fault(VcpuBackend& backend, unsigned vector, const Origin& from) {
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  const auto to = handler_of(*view_, sregs, vector);
  if (!to) {
    ++statistics_.lost;
    return run_free(backend, lost_for);
  }
  VMM_ASSIGN(const Exit exit, run_to(backend, *to));
  const auto* debug = std::get_if<Debug>(&exit);
  if (debug == nullptr || debug->pc != to->value()) return unexpected(exit);
  ++statistics_.faults;
  VMM_ASSIGN(const auto branch, delivered(backend, from, *to));
  return RunEnd{.delivered = branch};
}

// KVM raises #GP for RDPMC, and the RDPMC gate answers it. The instruction retires when the gate has advanced RIP.
Result<RunEnd> StepSource::read_counter(VcpuBackend& backend, const Current& current) {
  const auto next = instruction_pointer(current.regs, current.sregs) + current.instruction.length;
  VMM_ASSIGN(const Exit exit, run_to(backend, next));
  waiting_ = current;
  const auto* debug = std::get_if<Debug>(&exit);
  exit_open_ = leaves_instruction_open(exit);
  if (debug != nullptr && debug->pc == next.value()) return RunEnd{};  // a KVM that answers RDPMC itself
  return RunEnd{.exit = exit};
}

Result<Exit> StepSource::run_to(VcpuBackend& backend, const Stops& stops) {
  breakpoints_->set_walk(stops);
  VMM_TRY(breakpoints_->apply());
  auto exit = backend.run();
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
    return vpmu::is_canonical(address.value(), 48) ? x86::vector::PF : x86::vector::GP;
  };
  if (auto fault = fault_of(current.instruction.read(), vpmu::AccessKind::read)) return fault;
  return fault_of(current.instruction.store, vpmu::AccessKind::write);
}

bool StepSource::is_of_a_device(const Current& current, vpmu::GuestLinear at) {
  const auto fault = view_->probe_current(at, current.instruction.load->bytes > 0 ? current.instruction.load->bytes : 1,
                                          vpmu::AccessKind::read);
  return fault && fault->not_memory;
}

Result<RunEnd> StepSource::retire(VcpuBackend& backend, const Current& current, const kvm_regs& after,
                                  std::optional<Exit> exit) {
  VMM_ASSIGN(const unsigned cpl, target_cpl(backend, current));
  return retire_at(current, after, cpl, std::move(exit));
}

RunEnd StepSource::retire_at(const Current& current, const kvm_regs& after, unsigned target_cpl,
                             std::optional<Exit> exit) {
  ++statistics_.retired;
  Retired retired =
      retired_instruction(current.instruction, current.regs, current.sregs, after, clocks_.pass(1), target_cpl);
  if (current.instruction.load && is_of_a_device(current, retired.what.load.address))
    retired.what.load.level = vpmu::HitLevel::uncached;
  return RunEnd{.exit = std::move(exit), .retired = retired};
}

/// The privilege level that the instruction led to. Needed only if branches are wanted; only a far branch changes it.
Result<unsigned> StepSource::target_cpl(VcpuBackend& backend, const Current& current) const {
  if (!branches_ || current.instruction.branch != vpmu::BranchKind::far) return cpl_of(current.sregs);
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  return cpl_of(sregs);
}

StepSource::Origin StepSource::origin_of(const Current& current) {
  return {.at = instruction_pointer(current.regs, current.sregs), .cpl = cpl_of(current.sregs)};
}

// Any exit but a kick or the end of the machine means that the source has lost track of the guest.
RunEnd StepSource::unexpected(const Exit& exit) {
  if (!std::holds_alternative<Interrupted>(exit)) ++statistics_.lost;
  exit_open_ = leaves_instruction_open(exit);
  return RunEnd{.exit = exit};
}

Result<Bytes> StepSource::save(VcpuBackend& /*backend*/) {
  ByteWriter out;
  if (!clocks_.image().is_new()) out.put(clocks_.image());
  return out.take();
}

Result<bool> StepSource::restore(VcpuBackend& /*backend*/, std::span<const std::byte> image) {
  if (image.empty()) return true;
  ByteReader in{image};
  const auto clocks = in.get<UnhaltedClocks::Image>();
  return in.done() && clocks_.restore(clocks);
}

void StepSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.step.retired", statistics_.retired);
  visit("pmu.step.run_over", statistics_.run_over);
  visit("pmu.step.interrupts", statistics_.interrupts);
  visit("pmu.step.faults", statistics_.faults);
  visit("pmu.step.lost", statistics_.lost);
}

}  // namespace vmm
