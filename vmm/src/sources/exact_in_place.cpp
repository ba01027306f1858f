// System instructions that the exact source runs without KVM, and the exits that some of them make.
#include "sources/exact_source.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t rflags_tf = vpmu::bit(8), rflags_if = vpmu::bit(9), rflags_rf = vpmu::bit(16);

}  // namespace

// Returns empty if KVM must run the instruction.
Result<std::optional<RunEnd>> ExactSource::run_in_place(VcpuPort& port) {
  if (code_mode(sregs_) != CodeMode::bits64) return std::optional<RunEnd>{};
  const Instruction* const instruction = decode_at(instruction_pointer(regs_, sregs_));
  if (instruction == nullptr) return std::optional<RunEnd>{};
  const kvm_regs before = regs_;
  const kvm_sregs sregs = sregs_;
  regs_.rflags &= ~rflags_rf;
  VMM_ASSIGN(const auto outcome, system_.run(port, *instruction, regs_, sregs_));
  if (outcome == SystemInPlace::Outcome::left) {
    regs_.rflags = before.rflags;
    return std::optional<RunEnd>{};
  }
  ++statistics_.in_place;
  for_kvm_ = false;
  if (outcome == SystemInPlace::Outcome::exit) return std::optional{exit_in_place(*instruction)};
  engine_.resume(engine_state(regs_, sregs_));
  if (outcome == SystemInPlace::Outcome::done_and_dropped) engine_.forget_translations();
  pass(port, 1);
  const RunEnd end{.retired = retired_instruction(*instruction, before, sregs, regs_, 1, cpl_of(sregs_))};
  note(end);
  VMM_ASSIGN(const kvm_vcpu_events events, port.events());
  if (shadow_) {
    VMM_TRY(end_shadow(port));
  } else if (events.interrupt.shadow != 0) {
    shadow_ = true;
  } else if (outcome == SystemInPlace::Outcome::done_and_raised || events.nmi.pending != 0 ||
             (~before.rflags & regs_.rflags & rflags_if) != 0) {
    VMM_TRY(look_outside(port));
  }
  if ((regs_.rflags & rflags_tf) != 0) VMM_TRY(leave(port));
  return std::optional{end};
}

// A WRMSR is counted before it takes effect: one that stops a counter is counted, one that starts it is not. Other
// instructions retire when their exit has been answered.
RunEnd ExactSource::exit_in_place(const Instruction& instruction) {
  const Exit exit = system_.exit();
  if (!std::holds_alternative<MsrWrite>(exit)) {
    waiting_ = Waiting{.instruction = instruction, .regs = regs_};
    return {.exit = exit};
  }
  kvm_regs after = regs_;
  after.rip += instruction.length;
  RunEnd end{.exit = exit, .retired = retired_instruction(instruction, regs_, sregs_, after, 1)};
  note(end);
  return end;
}

// The VMM has answered the exit of an instruction that began here.
Result<std::optional<RunEnd>> ExactSource::finish(VcpuPort& port) {
  const auto waiting = std::exchange(waiting_, std::nullopt);
  const kvm_sregs sregs = sregs_;
  const vpmu::GuestLinear at = instruction_pointer(regs_, sregs_);
  // A PEBS record may have faulted meanwhile, which changes CR2.
  VMM_ASSIGN(sregs_, port.sregs());
  VMM_ASSIGN(const bool completed, system_.complete(port, regs_, sregs_));
  engine_.resume(engine_state(regs_, sregs_));
  if (!completed) {
    VMM_ASSIGN(const kvm_vcpu_events events, port.events());
    if (!undisturbed(events)) VMM_TRY(leave(port));
    const vpmu::GuestLinear now = instruction_pointer(regs_, sregs_);
    if (now == at || !progress_.plan().branches_wanted) return std::optional<RunEnd>{};
    return std::optional{RunEnd{.delivered = delivery(at, cpl_of(sregs), now, cpl_of(sregs_))}};
  }
  pass(port, 1);
  if (shadow_) VMM_TRY(end_shadow(port));
  if (!waiting) return std::optional<RunEnd>{};
  RunEnd end{.retired = retired_instruction(waiting->instruction, waiting->regs, sregs, regs_, 1)};
  note(end);
  return std::optional{end};
}

}  // namespace vmm
