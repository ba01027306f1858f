#include "sources/skid_walker.hpp"

#include "sources/retired_instruction.hpp"
#include "sources/trap_flag.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

/// Whether the vCPU's next step is its next instruction. Delivery of an event would push the TF of our single-step with
/// the guest's flags. A pending NMI makes KVM single-step by itself; so does one raised inside an NMI handler, where on
/// a slow host samples would show little but the handler of the previous sample.
bool undisturbed(const kvm_vcpu_events& e) {
  return !is_delivering(e) && e.interrupt.shadow == 0 && e.nmi.pending == 0 && e.nmi.masked == 0;
}

}  // namespace

/// The instructions from RIP to the next one that may branch.
struct SkidWalker::Block {
  static constexpr unsigned max_instructions = 128;
  std::array<Choice, max_instructions> items;
  unsigned size{};
};

std::uint64_t SkidWalker::draw(std::uint64_t below) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ % below;
}

SkidWalker::Block SkidWalker::decode_block(const kvm_regs& regs, const kvm_sregs& sregs) {
  Block block;
  std::array<std::byte, 1024> code{};
  const vpmu::GuestLinear start = instruction_pointer(regs, sregs);
  const std::size_t available = view_->fetch(start, code, cpl_of(sregs));
  std::size_t offset = 0;
  while (block.size < Block::max_instructions && offset < available) {
    const auto i = decode_instruction(std::span{code}.first(available).subspan(offset), code_mode(sregs));
    if (!i) break;
    block.items[block.size++] = {.at = start + offset, .instruction = *i};
    offset += i->length;
    if (i->ends_block) break;
  }
  return block;
}

std::optional<SkidWalker::Choice> SkidWalker::choose(const Block& block) {
  std::array<std::uint8_t, Block::max_instructions> fit{};
  unsigned count = 0;
  for (unsigned n = 0; n < block.size; ++n) {
    const Instruction& i = block.items[n].instruction;
    if (i.steppable && !i.rep) fit[count++] = static_cast<std::uint8_t>(n);
  }
  if (count == 0) return std::nullopt;
  return block.items[fit[draw(count)]];
}

// Lets the guest run to `at`. Empty when it has arrived; otherwise the reason why not.
Result<std::optional<RunEnd>> SkidWalker::run_to(VcpuBackend& backend, vpmu::GuestLinear at) {
  breakpoints_->set_walk(at);
  VMM_TRY(breakpoints_->apply());
  VMM_TRY(timer_->arm_wall(patience));
  auto exit = backend.run();
  breakpoints_->set_walk({});
  if (!exit) return Failure{exit.error()};
  if (const auto* debug = std::get_if<Debug>(&*exit);
      debug != nullptr && debug->pc == at.value() && debug->exception == 1) {
    // A trap of the guest's own comes before our breakpoint.
    VMM_ASSIGN(const std::optional<Debug> guests, breakpoints_->guests_part(*debug));
    if (!guests) {
      ++statistics_.runs;
      return std::optional<RunEnd>{};
    }
    VMM_TRY(breakpoints_->apply());
    ++statistics_.abandoned;
    return std::optional{RunEnd{.exit = *guests}};
  }
  VMM_TRY(breakpoints_->apply());
  ++statistics_.abandoned;
  return std::optional{RunEnd{.exit = *exit}};
}

// A fault would end the walk without a record, so only step if all operands are mapped.
bool SkidWalker::operands_mapped(const Choice& choice, const kvm_regs& regs, const kvm_sregs& sregs) {
  const auto mapped = [&](const std::optional<MemoryOperand>& m, vpmu::AccessKind kind) {
    if (!m) return true;
    const vpmu::GuestLinear at = operand_address(*m, choice.instruction, choice.at, regs, sregs);
    return !view_->probe_current(at, m->bytes > 0 ? m->bytes : 1, kind);
  };
  return mapped(choice.instruction.read(), vpmu::AccessKind::read) &&
         mapped(choice.instruction.store, vpmu::AccessKind::write);
}

Result<RunEnd> SkidWalker::step(VcpuBackend& backend, const Choice& choice) {
  VMM_ASSIGN(const kvm_regs before, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  // The guest may have set TF on the way.
  if (x86::rflags::TF::test(before.rflags) || !operands_mapped(choice, before, sregs)) {
    VMM_TRY(breakpoints_->apply());
    ++statistics_.nothing_found;
    return RunEnd{};
  }
  breakpoints_->arm_step(handlers_of_faults(*view_, sregs, choice.at, choice.instruction.raises));
  VMM_TRY(breakpoints_->apply());
  auto exit = backend.run();
  if (!exit) return Failure{exit.error()};
  ++statistics_.steps;
  const auto* debug = std::get_if<Debug>(&*exit);
  if (debug == nullptr || debug->exception != 1) {
    breakpoints_->end_step();
    VMM_TRY(breakpoints_->apply());
    ++statistics_.abandoned;
    return RunEnd{.exit = *exit};
  }
  VMM_ASSIGN(const kvm_regs after, backend.regs());
  VMM_ASSIGN(const std::optional<Debug> guests, breakpoints_->guests_part(*debug));
  const bool retired = x86::dr6::BS::test(debug->dr6);
  if (!retired && breakpoints_->stops_at(vpmu::GuestLinear{debug->pc})) take_trap_flag_back(*view_, after, before.rip);
  breakpoints_->end_step();
  VMM_TRY(breakpoints_->apply());
  if (!retired) {
    ++statistics_.abandoned;
    // At a fault handler's first instruction there is no exit to handle, unless the RDPMC gate stands there.
    const bool nothing = after.rip != before.rip && vpmu::GuestLinear{debug->pc} != breakpoints_->gate();
    return nothing ? RunEnd{} : RunEnd{.exit = *exit};
  }
  return RunEnd{.exit = guests, .retired = retired_instruction(choice.instruction, before, sregs, after, {})};
}

Result<RunEnd> SkidWalker::walk(VcpuBackend& backend, WalkLevels levels) {
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  VMM_ASSIGN(const bool halted, backend.halted());
  if (halted || !(cpl_of(sregs) == 0 ? levels.os : levels.usr)) {
    ++statistics_.wrong_level;
    return RunEnd{};
  }
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  if (!undisturbed(events) || x86::rflags::TF::test(regs.rflags)) {
    ++statistics_.event_pending;
    return RunEnd{};
  }
  const Block block = decode_block(regs, sregs);
  const auto choice = choose(block);
  if (!choice) {
    ++statistics_.nothing_found;
    return RunEnd{};
  }
  if (choice->at != block.items[0].at) {
    VMM_ASSIGN(auto stopped, run_to(backend, choice->at));
    if (stopped) return *stopped;
  }
  VMM_ASSIGN(RunEnd end, step(backend, *choice));
  if (end.retired) ++statistics_.walks;
  return end;
}

}  // namespace vmm
