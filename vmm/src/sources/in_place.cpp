#include "sources/in_place.hpp"

#include <utility>

#include "support/x86.hpp"

namespace vmm {

Result<RunInPlace> InPlace::run(VcpuBackend& backend, const Instruction& instruction, EngineVcpu& vcpu,
                                GuestTime& time) {
  using Outcome = SystemInPlace::Outcome;
  const kvm_regs before = vcpu.regs();
  const kvm_sregs sregs = vcpu.sregs();
  vcpu.regs().rflags &= ~x86::rflags::RF::mask;
  VMM_ASSIGN(const Outcome outcome, system_.run(backend, instruction, vcpu.regs(), vcpu.sregs()));
  if (outcome == Outcome::left) {
    vcpu.regs().rflags = before.rflags;
    return RunInPlace{.outcome = outcome, .end = {}};
  }
  if (outcome == Outcome::exit) return RunInPlace{.outcome = outcome, .end = exit_of(instruction, vcpu, time)};
  if (outcome == Outcome::done_and_dropped)
    vcpu.resume(system_.dropped());
  else
    vcpu.resume();
  return RunInPlace{.outcome = outcome,
                    .end = {.retired = retired_instruction(instruction, before, sregs, vcpu.regs(),
                                                           time.ran_elsewhere(vcpu.engine().observed()), vcpu.cpl())}};
}

// A WRMSR is counted before it takes effect: one that stops a counter is counted, one that starts it is not. Other
// instructions retire when their exit has been answered.
RunEnd InPlace::exit_of(const Instruction& instruction, const EngineVcpu& vcpu, GuestTime& time) {
  const Exit exit = system_.exit();
  if (!std::holds_alternative<MsrWrite>(exit)) {
    waiting_ = Waiting{.instruction = instruction, .regs = vcpu.regs()};
    return {.exit = exit};
  }
  kvm_regs after = vcpu.regs();
  after.rip += instruction.length;
  return {.exit = exit,
          .retired = retired_instruction(instruction, vcpu.regs(), vcpu.sregs(), after,
                                         time.ran_elsewhere(vcpu.engine().observed()))};
}

Result<AnsweredInPlace> InPlace::finish(VcpuBackend& backend, EngineVcpu& vcpu, GuestTime& time) {
  const auto waiting = std::exchange(waiting_, std::nullopt);
  const kvm_sregs before = vcpu.sregs();
  // A PEBS record may have faulted meanwhile, which changes CR2.
  VMM_ASSIGN(vcpu.sregs(), backend.sregs());
  VMM_ASSIGN(const bool completed, system_.complete(backend, vcpu.regs(), vcpu.sregs()));
  vcpu.resume();
  AnsweredInPlace answered{.completed = completed, .retired = {}};
  if (completed && waiting)
    answered.retired = retired_instruction(waiting->instruction, waiting->regs, before, vcpu.regs(),
                                           time.ran_elsewhere(vcpu.engine().observed()));
  return answered;
}

}  // namespace vmm
