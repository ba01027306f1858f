#include "lockstep/lockstep_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "decode/instruction.hpp"
#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

/// The length of a window, in runs and single instructions.
constexpr std::uint64_t window_turns = 100;
/// A window also ends after so many instructions.
constexpr std::uint64_t window_instructions = 250'000;
/// It also ends after more than so many consecutive runs shorter than short_run instructions: the guest waits for the
/// clock, or reads it all the time.
constexpr unsigned max_short_runs = 10;
constexpr std::uint64_t short_run = 50;
constexpr std::chrono::nanoseconds max_gap = std::chrono::milliseconds{100};

}  // namespace

Result<void> LockstepSource::program(const vpmu::CountPlan&) { return {}; }
Result<vpmu::CountDeltas> LockstepSource::sync(VcpuBackend&) { return vpmu::CountDeltas{}; }
Result<RunEnd> LockstepSource::walk(VcpuBackend& backend) { return run(backend, std::nullopt); }

Result<RunEnd> LockstepSource::come_out(VcpuBackend& backend) {
  VMM_ASSIGN(const RunEnd end, steps_.come_out(backend));
  return RunEnd{.exit = end.exit};
}

// A plan that wants branches makes StepSource single-step, whatever the guest's counters do.
Result<void> LockstepSource::begin_window() {
  begin_ = false;
  short_runs_ = 0;
  window_left_ = window_turns;
  window_end_ = statistics_.compared + window_instructions;
  ++statistics_.windows;
  return steps_.program(vpmu::CountPlan{.branches_wanted = true});
}

Result<void> LockstepSource::end_window() {
  window_left_ = 0;
  return steps_.program({});
}

Result<RunEnd> LockstepSource::run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  if (window_left_ == 0 && (begin_ || statistics_.windows == 0)) VMM_TRY(begin_window());
  if (window_left_ != 0) {
    // KVM is about to enter a handler, and would do so in the middle of a step.
    VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
    if (is_delivering(events)) VMM_TRY(end_window());
  }
  if (window_left_ != 0) {
    VMM_ASSIGN(RunEnd end, turn(backend, at_most));
    end.retired.reset();  // counters count nothing here
    end.delivered.reset();
    if (--window_left_ == 0 || statistics_.compared >= window_end_) VMM_TRY(end_window());
    return end;
  }
  const std::chrono::nanoseconds gap{random_() % static_cast<std::uint64_t>(max_gap.count())};
  VMM_ASSIGN(RunEnd end, steps_.run(backend, at_most ? std::min(*at_most, gap) : gap));
  begin_ = end.exit && std::holds_alternative<Interrupted>(*end.exit);
  return end;
}

Result<RunEnd> LockstepSource::turn(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  VMM_ASSIGN(const bool undisturbed, is_undisturbed(backend));
  if (!undisturbed) return step(backend, at_most);
  const std::uint64_t before = statistics_.compared;
  VMM_ASSIGN(const LockstepRuns::Outcome outcome, runs_.run(backend));
  short_runs_ = statistics_.compared - before < short_run ? short_runs_ + 1 : 0;
  if (outcome.round_and_round || short_runs_ > max_short_runs) window_left_ = 1;
  if (outcome.passed) return RunEnd{.exit = outcome.exit};
  if (!outcome.left) return step(backend, at_most);
  VMM_TRY(note_left(backend));
  return steps_.run(backend, at_most);
}

Result<void> LockstepSource::note_left(VcpuBackend& backend) {
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  std::array<std::byte, max_instruction_bytes> bytes{};
  const std::size_t size = view_->fetch(vpmu::GuestLinear{regs.rip}, bytes, cpl_of(sregs));
  ++statistics_.left;
  ++statistics_.left_by_mnemonic[mnemonic_of(std::span{bytes}.first(size), CodeMode::bits64)];
  return {};
}

/// Whether nothing comes before the vCPU's next instruction, and that is 64-bit code.
Result<bool> LockstepSource::is_undisturbed(VcpuBackend& backend) {
  if (steps_.in_exit()) return false;
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  if (code_mode(sregs) != CodeMode::bits64 || (regs.rflags & (x86::rflags::TF::mask | x86::rflags::RF::mask)) != 0)
    return false;
  VMM_ASSIGN(const kvm_vcpu_events events, backend.events());
  if (events.interrupt.shadow != 0 || events.smi.pending != 0) return false;
  VMM_ASSIGN(const bool halted, backend.halted());
  if (halted) return false;
  VMM_ASSIGN(const auto interrupt, steps_.deliverable(backend));
  return !interrupt;
}

Result<RunEnd> LockstepSource::step(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) {
  VMM_ASSIGN(const auto trial, try_one(backend));
  const std::uint64_t interrupts = steps_.statistics().interrupts;
  const std::uint64_t faults = steps_.statistics().faults;
  VMM_ASSIGN(RunEnd end, steps_.run(backend, at_most));
  if (!trial) return end;
  if (end.retired && !end.exit) {
    VMM_TRY(compare(backend, *trial));
  } else if (trial->retired && steps_.statistics().faults != faults && steps_.statistics().interrupts == interrupts) {
    return host_error(fmt::format("lockstep: the engine ran what faults in KVM, at RIP {:#x}: {}", trial->before.rip,
                                  disassemble(std::span{trial->bytes}.first(trial->fetched), CodeMode::bits64)));
  } else {
    ++statistics_.unclear;
  }
  return end;
}

/// Empty if something else comes before the next instruction, or if that cannot be compared.
Result<std::optional<LockstepSource::Trial>> LockstepSource::try_one(VcpuBackend& backend) {
  if (steps_.in_exit()) return std::optional<Trial>{};
  Trial t;
  VMM_ASSIGN(t.before, backend.regs());
  VMM_ASSIGN(t.sregs, backend.sregs());
  if (code_mode(t.sregs) != CodeMode::bits64 || x86::rflags::TF::test(t.before.rflags)) return std::optional<Trial>{};
  t.fetched = view_->fetch(vpmu::GuestLinear{t.before.rip}, t.bytes, cpl_of(t.sregs));
  const auto instruction = decode_instruction(std::span{t.bytes}.first(t.fetched), CodeMode::bits64);
  if (!instruction || stores_what_may_differ(*instruction)) return std::optional<Trial>{};
  t.instruction = *instruction;
  runs_.ram().begin();
  runs_.platform().begin(backend);
  vpmu::exec::Engine& engine = runs_.engine();
  engine.load(engine_state(t.before, t.sregs, backend.paging_limits()));
  constexpr unsigned max_turns = 16;
  Stop stop = Stop::again;
  for (unsigned turn = 0; turn < max_turns && stop == Stop::again; ++turn) stop = engine.run(1);
  t.retired = stop == Stop::budget && engine.passed().instructions == 1;
  t.after = engine.state();
  return std::optional{t};
}

Result<void> LockstepSource::compare(VcpuBackend& backend, const Trial& t) {
  if (!t.retired) {
    ++statistics_.left;
    return {};
  }
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  const auto code = std::span{t.bytes}.first(t.fetched);
  auto difference = register_difference(t.after, engine_state(regs, sregs, backend.paging_limits()),
                                        t.instruction.flags.undefined, uncompared_bits(t.instruction));
  if (const auto* const vectors = runs_.platform().used(); vectors != nullptr && !difference) {
    VMM_ASSIGN(const vpmu::exec::VectorState theirs, backend.vectors());
    difference = vector_difference(*vectors, theirs);
  }
  if (!difference) difference = memory_difference(runs_.ram());
  if (difference)
    return host_error(
        fmt::format("lockstep: at RIP {:#x}, {}: {} is {:#x} by the engine and {:#x} by KVM; RFLAGS before it {:#x}, "
                    "after {} alike",
                    t.before.rip, disassemble(code, CodeMode::bits64), difference->what, difference->ours,
                    difference->theirs, t.before.rflags, statistics_.compared));
  ++statistics_.compared;
  ++statistics_.stepped;
  ++statistics_.mnemonics[t.instruction.mnemonic];
  return {};
}

void LockstepSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.lockstep.compared", statistics_.compared);
  visit("pmu.lockstep.user", statistics_.user);
  visit("pmu.lockstep.one_by_one", statistics_.one_by_one);
  visit("pmu.lockstep.stepped", statistics_.stepped);
  visit("pmu.lockstep.runs", statistics_.runs);
  visit("pmu.lockstep.vectors", statistics_.vectors);
  visit("pmu.lockstep.lost_ways", statistics_.lost_ways);
  visit("pmu.lockstep.left", statistics_.left);
  visit("pmu.lockstep.unclear", statistics_.unclear);
  visit("pmu.lockstep.not_begun", statistics_.not_begun);
  visit("pmu.lockstep.windows", statistics_.windows);
  for (const auto& [mnemonic, count] : statistics_.mnemonics)
    if (count != 0) visit(fmt::format("pmu.lockstep.compared.{}", mnemonic), count);
  for (const auto& [mnemonic, count] : statistics_.left_by_mnemonic)
    visit(fmt::format("pmu.lockstep.left.{}", mnemonic), count);
  steps_.visit_statistics(visit);
}

}  // namespace vmm
