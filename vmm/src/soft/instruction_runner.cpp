#include "soft/instruction_runner.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "decode/registers.hpp"
#include "soft/instruction_accesses.hpp"
#include "soft/instruction_faults.hpp"
#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {

using vpmu::exec::Stop;

std::optional<Exit> InstructionRunner::run_unchecked(std::uint64_t max) {
  const Stop stop = engine_->run(max);
  return stop == Stop::budget || stop == Stop::again ? std::nullopt : run_what_was_left(left_by_engine(stop));
}

std::optional<Exit> InstructionRunner::run_some(std::uint64_t max) {
  const bool behind_mov_ss = debug_->is_behind_mov_ss();
  s_->events.interrupt.shadow = 0;
  auto exit = checks_accesses(s_->regs, s_->sregs) ? run_checked() : run_unchecked(max);
  // SDM 3A 6.8.3: of several loads of SS in a row only the first holds anything off.
  if (behind_mov_ss && debug_->is_behind_mov_ss()) s_->events.interrupt.shadow = 0;
  return exit;
}

// SDM 3A table 6-2: a page fault comes before #AC.
bool InstructionRunner::reaches_all(const Instruction& i) {
  return std::ranges::none_of(accesses_of(i, *s_), [&](const Access& a) {
    const auto kind = a.write ? vpmu::AccessKind::write : vpmu::AccessKind::read;
    return core_->view.probe_current(vpmu::GuestLinear{a.at}, a.bytes, kind).has_value();
  });
}

std::optional<Exit> InstructionRunner::run_checked() {
  std::array<std::byte, max_instruction_bytes> bytes{};
  const std::size_t size = core_->view.fetch(instruction_pointer(s_->regs, s_->sregs), bytes, cpl_of(s_->sregs));
  const auto code = std::span{bytes}.first(size);
  const auto i = decode_instruction(code, code_mode(s_->sregs));
  if (i && !i->system)
    if (const auto fault = checked_fault(*core_, *i, code);
        fault && (fault->vector != x86::vector::AC || reaches_all(*i)))
      return take(*fault, EventKind::fault);
  const kvm_regs before = s_->regs;
  const auto stop = engine_->run(1);
  if (stop != Stop::budget && stop != Stop::again) return run_what_was_left(left_by_engine(stop));
  if (code_mode(s_->sregs) == CodeMode::bits64 || s_->regs.rip <= s_->sregs.cs.limit) return std::nullopt;
  s_->regs = before;  // a branch to beyond the limit
  return take(general_protection, EventKind::fault);
}

// An event behind MOV SS ends what MOV SS holds off (SDM 3A 6.8.3). A #DB of the next instruction, INT1 or by DR7.GD,
// reports the hits that were held; any other fault drops them; after INT n they follow, at the handler.
std::optional<Exit> InstructionRunner::take(Exception exception, EventKind kind, std::uint8_t length) {
  if (exception.vector < 32 && exception.vector != x86::vector::NMI) ++core_->statistics.exceptions;
  if (kind != EventKind::software) {
    const std::uint64_t held = debug_->take_held_hits();
    if (exception.vector == x86::vector::DB) s_->debug.dr6 |= held;
  }
  s_->halted = false;
  engine_->registers_changed();
  core_->pass_time(1);  // a guest whose handler always faults must run out of ticks too
  if (deliver(*s_, core_->view, exception, kind, length)) return std::nullopt;
  return Exit{Shutdown{}};
}

std::optional<Exit> InstructionRunner::run_what_was_left(const LeftByEngine& left) {
  std::array<std::byte, max_instruction_bytes> room{};
  std::span<const std::byte> code;
  const Instruction* const i = next_instruction(room, code);
  if (i != nullptr && i->system) {
    std::optional<std::uint64_t> operand;
    // A far call loads its operand; what it stores is on the stack.
    if (const auto& at = i->load ? i->load : i->store ? i->store : i->invalidated)
      operand = operand_address(*at, *i, instruction_pointer(s_->regs, s_->sregs), s_->regs, s_->sregs).value();
    return run_system(*i->system, operand);
  }
  return run_into_fault(i == nullptr ? std::nullopt : std::optional{*i}, code, left);
}

LeftRun InstructionRunner::run_left(const LeftByEngine& left) {
  const bool is_left = left.why == Stop::unsupported || left.why == Stop::fault || left.why == Stop::platform ||
                       left.why == Stop::float_error;
  if (!is_left || checks_accesses(s_->regs, s_->sregs)) return {};
  std::array<std::byte, max_instruction_bytes> room{};
  std::span<const std::byte> code;
  const Instruction* const i = next_instruction(room, code);
  if (i != nullptr && (i->rep || (i->system && !i->is(SystemOp::cpuid)))) return {};
  const std::uint64_t retired = core_->statistics.instructions, exceptions = core_->statistics.exceptions;
  LeftRun ran{.exit = run_what_was_left(left)};
  if (core_->statistics.instructions != retired)
    ran.end = LeftRun::End::retired;
  else if (core_->statistics.exceptions != exceptions)
    ran.end = LeftRun::End::delivered;
  return ran;
}

/// The bytes at the instruction pointer that can be executed.
std::span<const std::byte> InstructionRunner::fetch_next(std::span<std::byte> room) const {
  const std::size_t size =
      core_->memory.fetch(core_->paging(), instruction_pointer(s_->regs, s_->sregs), room, core_->privilege());
  return room.first(size);
}

/// Null: none can be decoded. `code` is what can be fetched of it, in `room`.
const Instruction* InstructionRunner::next_instruction(std::span<std::byte> room, std::span<const std::byte>& code) {
  code = fetch_next(room);
  return decoded_(code, code_mode(s_->sregs));
}

std::optional<Exit> InstructionRunner::run_system(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  const std::uint64_t rf = s_->regs.rflags & x86::rflags::RF::mask;
  if (i.op != SystemOp::iret) s_->regs.rflags &= ~x86::rflags::RF::mask;
  engine_->registers_changed();
  if (i.op == SystemOp::cpuid && core_->is_mark(static_cast<std::uint32_t>(s_->regs.rax))) core_->marked();
  const SystemResult result = core_->system.run(i, operand);
  auto exit = pending_.begin(result, i.length, static_cast<std::uint32_t>(s_->regs.rcx));
  if (const auto* raised = std::get_if<Raised>(&result)) {
    s_->regs.rflags |= raised->kind == EventKind::fault ? rf : 0;
    return take(raised->exception, raised->kind, i.length);
  }
  if (exit) return exit;
  if (changes_translations(i)) engine_->translations_changed(core_->system.lost(i, operand));
  ++core_->statistics.instructions;
  ++core_->statistics.system;
  core_->pass_time(1);
  return std::nullopt;
}

// The engine stops before a fault and does not give its reason: check the reasons in the order of SDM 3A table 6-2.
std::optional<Exit> InstructionRunner::run_into_fault(const std::optional<Instruction>& i,
                                                      std::span<const std::byte> code, const LeftByEngine& left) {
  if (!i) {
    if (code.size() < max_instruction_bytes)
      return take(fetch_fault(*core_, instruction_pointer(s_->regs, s_->sregs).value() + code.size()),
                  EventKind::fault);
    return take(undefined_opcode, EventKind::fault);
  }
  if (left.why == Stop::float_error) return refuse(*i, left);
  // An instruction that has tried to access memory exists and is enabled. One that does not, or is not, is an invalid
  // opcode at any privilege.
  if (!left.missing)
    if (const auto fault = feature_fault(*core_, *i, code)) return take(*fault, EventKind::fault);
  if (cpl_of(s_->sregs) != 0 && i->privileged) return take(general_protection, EventKind::fault);
  for (const Access& access : reached_accesses(*i, *s_, left.missing)) {
    if (!vpmu::is_canonical(access.at, 48) || !vpmu::is_canonical(access.at + access.bytes - 1, 48))
      return take(access.stack ? stack_fault : general_protection, EventKind::fault);
    const auto kind = access.write ? vpmu::AccessKind::write : vpmu::AccessKind::read;
    const auto fault = core_->view.probe_current(vpmu::GuestLinear{access.at}, access.bytes, kind);
    if (!fault) continue;
    if (fault->not_memory) return repeats(*i, s_->regs) ? run_iteration(*i) : access_device(*i, left);
    return take(page_fault(*s_, *fault), EventKind::fault);
  }
  if (i->raises == Raises::division)
    return take({.vector = x86::vector::DE, .error_code = std::nullopt}, EventKind::fault);
  if (i->branch != vpmu::BranchKind::none) return take(general_protection, EventKind::fault);
  return refuse(*i, left);
}

// SDM 3A 6.15, interrupts 16 and 19; SDM 1 11.5.
std::optional<Exit> InstructionRunner::raise_float_error(std::uint8_t raised) {
  if (raised == 0) return take({.vector = x86::vector::MF, .error_code = std::nullopt}, EventKind::fault);
  s_->vectors.set_mxcsr(s_->vectors.mxcsr() | raised);
  const bool handled = x86::cr4::OSXMMEXCPT::test(s_->sregs.cr4);
  return take({.vector = handled ? x86::vector::XM : x86::vector::UD, .error_code = std::nullopt}, EventKind::fault);
}

// An instruction that the model has, and the engine does not run, must not end the machine.
std::optional<Exit> InstructionRunner::refuse(const Instruction& i, const LeftByEngine& left) {
  if (left.why == Stop::float_error) return raise_float_error(left.raised);
  if (left.why == Stop::fault)
    return take(general_protection, EventKind::fault);  // a misaligned operand, or reserved bits
  if (++core_->statistics.unknown[i.mnemonic] == 1 && log_ != nullptr)
    log_->warning("{} at {:#x} cannot run without KVM: the guest gets #UD; run it with --accel kvm", i.mnemonic,
                  s_->regs.rip);
  return take(undefined_opcode, EventKind::fault);
}

// Lets the engine run the instruction on a scratch page in place of the devices'.
std::optional<Exit> InstructionRunner::access_device(const Instruction& i, const LeftByEngine& left) {
  const auto parts = devices_.parts_of(reached_accesses(i, *s_, left.missing));
  devices_.load(parts, engine_->scratch());
  const std::uint64_t retired = core_->statistics.instructions;
  const Stop why = engine_->run_on_scratch();
  if (i.rep || i.partial) engine_->translations_changed();  // there can be others than those of the parts
  for (const DeviceMemory::Part& p : parts) engine_->forget_page(p.at);
  ++core_->statistics.mmio;
  if (core_->statistics.instructions == retired)
    return why == Stop::again ? std::nullopt : refuse(i, left_by_engine(why));
  devices_.store(parts, engine_->scratch());
  return std::nullopt;
}

bool InstructionRunner::access_beyond_ram(vpmu::GuestLinear at, BytesOfAccess bytes) {
  const auto* const in = std::get_if<std::span<const std::byte>>(&bytes);
  const auto physical = devices_.beyond_ram(at.value(), in != nullptr);
  if (!physical) return false;
  if (in != nullptr)
    devices_.write(*physical, *in);
  else
    devices_.read(*physical, std::get<std::span<std::byte>>(bytes));
  return true;
}

std::optional<Exit> InstructionRunner::run_watched(const Watch& w) {
  if (const std::uint64_t hits = debug_->hits_before(w); hits != 0) return debug_hit(w, hits);
  std::array<std::byte, max_instruction_bytes> bytes{};
  const std::size_t size = core_->view.fetch(instruction_pointer(s_->regs, s_->sregs), bytes, cpl_of(s_->sregs));
  const auto code = std::span{bytes}.first(size);
  const auto i = decode_instruction(code, code_mode(s_->sregs));
  const auto touched = i ? accesses_of(*i, *s_) : std::vector<Access>{};
  const std::uint64_t before = core_->statistics.instructions, exceptions = core_->statistics.exceptions;
  const std::uint64_t next = s_->regs.rip + (i ? i->length : 0U);
  debug_->begin_instruction();
  auto exit = i && debug_->runs_by_iterations(w, *i, touched) ? run_iteration(*i) : run_some(1);
  if (pending_.waits()) {
    const PortAccess& access = pending_.access;
    const bool port = pending_.kind == PendingExit::Kind::port;
    if (port) pending_.hits = data_hits(w, touched);
    if (port && x86::cr4::DE::test(s_->sregs.cr4)) pending_.hits |= port_hits(w, access.port, access.bytes);
    if (!w.host_step) pending_.hits |= debug_->trap_behind(w, i, next, true);
    return exit;
  }
  if (exit) return exit;
  // The host's single-step over an instruction that faults ends at the handler.
  if (core_->statistics.exceptions != exceptions)
    return w.host_step ? debug_hit(w, x86::dr6::BS::mask | debug_->take_held_hits()) : std::nullopt;
  if (core_->statistics.instructions == before) return std::nullopt;
  std::uint64_t hits = data_hits(w, touched);
  if (debug_->is_behind_mov_ss()) {
    debug_->hold(hits);
    return w.host_step ? debug_hit(w, x86::dr6::BS::mask) : std::nullopt;
  }
  hits |= debug_->take_held_hits() | (w.host_step ? x86::dr6::BS::mask : debug_->trap_behind(w, i, next, false));
  return hits == 0 ? std::nullopt : debug_hit(w, hits);
}

// One iteration of a repeated string instruction. The address size determines the width of the count (SDM 2B REP). RF
// is 1 until the last: see SoftEngine::run().
std::optional<Exit> InstructionRunner::run_iteration(const Instruction& i) {
  const unsigned address_bytes = count_bytes(i);
  const std::uint64_t counted = vpmu::low_bits(8 * address_bytes);
  const std::uint64_t count = s_->regs.rcx & counted;
  if (count <= 1) return run_some(1);
  const std::uint64_t at = s_->regs.rip, done = core_->statistics.instructions;
  const std::uint64_t beyond = address_bytes == 2 ? s_->regs.rcx & ~counted : 0;
  s_->regs.rcx = beyond | 1;
  engine_->registers_changed();
  auto exit = run_some(1);
  engine_->registers_changed();
  if (core_->statistics.instructions == done) {
    s_->regs.rcx = beyond | count;
    return exit;
  }
  s_->regs.rcx = beyond | (count - 1);
  const bool equal = x86::rflags::ZF::test(s_->regs.rflags);
  if (i.early_end != (equal ? EarlyEnd::equality : EarlyEnd::difference)) {
    s_->regs.rip = at;
    s_->regs.rflags |= x86::rflags::RF::mask;
  }
  return exit;
}

// The frame of an instruction breakpoint has RF unchanged. SDM 3A 2.3.
std::optional<Exit> InstructionRunner::debug_hit(const Watch& w, std::uint64_t hits) {
  if (w.to_host)
    return Exit{Debug{.exception = x86::vector::DB, .pc = s_->regs.rip, .dr6 = x86::dr6::fixed | hits, .dr7 = w.dr7}};
  debug_->report(hits);
  return take({.vector = x86::vector::DB, .error_code = std::nullopt}, EventKind::trap);
}

void InstructionRunner::complete_exit() {
  const PendingExit answered = std::exchange(pending_, {});
  if (!answered.waits()) return;
  std::optional<Exception> fault;
  bool again = false;
  if (answered.gp != 0) fault = general_protection;
  if (answered.kind == PendingExit::Kind::port) {
    const auto end = core_->system.complete(answered.access, answered.port_data);
    fault = end.fault;
    again = end.again;
  }
  if (fault) {
    static_cast<void>(debug_->take_held_hits());
    inject(*fault);
    return;
  }
  if (answered.kind == PendingExit::Kind::read) set_edx_eax(s_->regs, answered.data);
  if (again) {
    s_->regs.rflags |= x86::rflags::RF::mask;  // SDM 3B 17.3.1.1: its breakpoint does not hit again
    core_->pass_time(1);
    engine_->registers_changed();
  } else {
    retire(answered.length);
  }
  if (const std::uint64_t hits = answered.hits | debug_->take_held_hits(); hits != 0) {
    debug_->report(hits);
    inject({.vector = x86::vector::DB, .error_code = std::nullopt});
  }
}

/// Has an exception delivered before the next instruction.
void InstructionRunner::inject(const Exception& exception) {
  auto& to = s_->events.exception;
  to.injected = 1;
  to.nr = exception.vector;
  to.has_error_code = exception.error_code ? 1 : 0;
  to.error_code = exception.error_code.value_or(0);
}

/// The instruction of an exit has retired.
void InstructionRunner::retire(std::uint8_t length) {
  s_->regs.rip += length;
  s_->regs.rflags &= ~x86::rflags::RF::mask;
  ++core_->statistics.instructions;
  ++core_->statistics.system;
  core_->pass_time(1);
  engine_->registers_changed();
}

}  // namespace vmm
