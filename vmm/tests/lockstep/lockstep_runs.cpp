#include "lockstep/lockstep_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

/// How many instructions the engine runs ahead.
constexpr std::uint64_t horizon = 20'000;
/// The same if only near places were found, as in a loop.
constexpr std::uint64_t far_horizon = 320'000;
/// Parts of long string instructions in one run.
constexpr unsigned max_parts = 16;
/// Pages that the engine may touch, and the number of instructions between two checks of that.
constexpr std::size_t max_pages = 512;
constexpr std::uint64_t stride = 1000;
/// The engine does one of so many runs instruction by instruction.
constexpr std::uint64_t one_by_one_of = 32;
constexpr std::chrono::nanoseconds patience = std::chrono::milliseconds{100};
/// After so many kicks in one run, KVM is taken not to reach the run's end; and after so many more at which it had done
/// nothing since the last one, because a busy host gave it no time.
constexpr unsigned max_kicks = 10, max_idle_kicks = 600;
/// A run that is so many times shorter than the engine's path is in a loop.
constexpr std::uint64_t max_turns = 100;

/// How KVM_RUN ended where the run has not.
std::string describe_stop(const Exit& exit, unsigned kicks) {
  if (std::holds_alternative<Interrupted>(exit)) return fmt::format("kick {}", kicks);
  return fmt::format("exit {} of vmm::Exit", exit.index());
}

}  // namespace

vpmu::exec::VectorState* LockstepPlatform::vectors() {
  if (!before_) {
    const auto state = backend_->vectors();
    if (!state) return nullptr;
    before_ = *state;
  }
  now_ = before_;
  return &*now_;
}

Result<LockstepRuns::Outcome> LockstepRuns::run(VcpuBackend& backend) {
  Start start{};
  VMM_ASSIGN(start.regs, backend.regs());
  VMM_ASSIGN(start.sregs, backend.sregs());
  VMM_ASSIGN(start.events, backend.events());
  start.state = engine_state(start.regs, start.sregs, backend.paging_limits());
  start.pace = statistics_->runs % one_by_one_of == 0 ? Pace::one_by_one : Pace::in_one_go;
  ram_.begin();
  platform_.begin(backend);
  const Place to = scout(backend, start);
  is_round_and_round_ =
      !scout_left_ && !path_.is_cut() && scout_.passed().instructions > max_turns * (to.instructions + 1);
  if (to.instructions == 0) return Outcome{.left = scout_left_, .round_and_round = is_round_and_round_};
  VMM_ASSIGN(const Verdict verdict, try_to(backend, start, to));
  if (verdict.difference) {
    VMM_ASSIGN(const std::string text, explain(backend, start, to, *verdict.difference));
    return host_error(text);
  }
  if (!verdict.has_begun) {
    ++statistics_->not_begun;
  } else if (verdict.unclear) {
    statistics_->unclear += to.instructions;
  } else {
    count(start, to);
  }
  return Outcome{.passed = true, .round_and_round = is_round_and_round_, .exit = verdict.exit};
}

// Stops where it is if somebody kicks the vCPU.
Place LockstepRuns::scout(const VcpuBackend& backend, const Start& start) {
  path_.begin(start.state);
  scout_.load(start.state);
  Stop stop = Stop::budget;
  unsigned parts = 0;
  const auto passed = [&] { return scout_.passed().instructions; };
  const auto may_go_on = [&] {
    return !backend.kick_flag().is_set() && (stop == Stop::budget || (stop == Stop::again && ++parts < max_parts)) &&
           ram_.pages() < max_pages;
  };
  for (const std::uint64_t ahead : {horizon, far_horizon}) {
    while (passed() < ahead && may_go_on()) stop = scout_.run(std::min(ahead - passed(), stride));
    is_way_ = path_.end(scout_.state().rip, passed());
    if (!is_way_ || passed() < ahead || path_.is_cut() || 4 * path_.best().instructions > ahead) break;
  }
  scout_left_ = stop != Stop::budget && scout_.passed().instructions == 0;
  if (!is_way_) {
    ++statistics_->lost_ways;
    return Place{};
  }
  return path_.best();
}

// If it stops short of `to`, the comparison shows that, because KVM gets further.
void LockstepRuns::run_engine(const Start& start, const Place& to) {
  ram_.rewind();
  platform_.rewind();
  engine_.load(start.state);
  Stop stop = Stop::again;
  while ((stop == Stop::again || stop == Stop::budget) && engine_.passed().instructions < to.instructions)
    stop = engine_.run(start.pace == Pace::one_by_one ? 1 : to.instructions - engine_.passed().instructions);
}

Result<LockstepRuns::Verdict> LockstepRuns::try_to(VcpuBackend& backend, const Start& start, const Place& to) {
  run_engine(start, to);
  breakpoints_->set_walk(vpmu::GuestLinear{to.rip});
  auto verdict = run_kvm(backend, start, to);
  breakpoints_->set_walk({});
  VMM_TRY(timer_->disarm());
  if (!verdict || verdict->difference || verdict->unclear || !verdict->has_begun) return verdict;
  VMM_ASSIGN(verdict->difference, compare(backend, to));
  return verdict;
}

Result<LockstepRuns::Verdict> LockstepRuns::run_kvm(VcpuBackend& backend, const Start& start, const Place& to) {
  Verdict verdict;
  unsigned kicks = 0, idle_kicks = 0;
  kvm_regs before = start.regs;
  const auto is_patient = [&](const kvm_regs& now) {
    const bool is_idle = std::memcmp(&now, &before, sizeof now) == 0;
    before = now;
    return is_idle ? ++idle_kicks < max_idle_kicks : ++kicks < max_kicks;
  };
  VMM_TRY(breakpoints_->apply());
  for (std::uint64_t times = 0; times <= to.times;) {
    VMM_TRY(timer_->arm_wall(patience));
    VMM_ASSIGN(const Exit exit, backend.run());
    VMM_ASSIGN(kvm_regs regs, backend.regs());
    const auto* const debug = std::get_if<Debug>(&exit);
    if (debug != nullptr && debug->exception == 1 && debug->pc == to.rip) {
      if (++times > to.times) break;
      regs.rflags |= x86::rflags::RF::mask;
      VMM_TRY(backend.set_regs(regs));
    } else if (debug != nullptr && breakpoints_->classify(*debug, regs.rflags, true) == Breakpoints::Hit::guest) {
      return Verdict{.difference = {}, .exit = exit, .unclear = true};
    } else if (std::holds_alternative<Interrupted>(exit) && is_patient(regs)) {
      verdict.exit.emplace(exit);
    } else if (std::holds_alternative<Interrupted>(exit) && std::memcmp(&regs, &start.regs, sizeof regs) == 0) {
      return Verdict{.difference = {}, .exit = exit, .has_begun = false};
    } else if (debug == nullptr) {
      const std::string what =
          fmt::format("RIP where KVM comes to a stop by {}", describe_stop(exit, kicks + idle_kicks));
      return Verdict{.difference = Difference{what, to.rip, regs.rip}, .exit = exit};
    }
  }
  return verdict;
}

Result<std::optional<Difference>> LockstepRuns::compare(VcpuBackend& backend, const Place& to) {
  VMM_ASSIGN(const kvm_regs regs, backend.regs());
  VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
  auto difference =
      register_difference(engine_.state(), engine_state(regs, sregs, backend.paging_limits()), to.undefined);
  if (const auto* const ours = platform_.used(); ours != nullptr && !difference) {
    VMM_ASSIGN(const vpmu::exec::VectorState theirs, backend.vectors());
    difference = vector_difference(*ours, theirs);
  }
  return difference ? difference : memory_difference(ram_);
}

Result<void> LockstepRuns::restore(VcpuBackend& backend, const Start& start) {
  if (!ram_.restore_guest()) return host_error("lockstep: the guest's memory cannot be put back");
  VMM_TRY(backend.set_sregs(start.sregs));
  VMM_TRY(backend.set_regs(start.regs));
  if (const auto* const vectors = platform_.before()) VMM_TRY(backend.set_vectors(*vectors));
  return backend.set_events(start.events);
}

// Bisects the run until one instruction is left whose results differ.
Result<std::string> LockstepRuns::explain(VcpuBackend& backend, Start start, const Place& end,
                                          const Difference& difference) {
  Place good = path_.place(0);
  Place bad = end;
  Difference seen = difference;
  const auto differs = [&](const Place& to) -> Result<bool> {
    VMM_TRY(restore(backend, start));
    VMM_ASSIGN(const Verdict verdict, try_to(backend, start, to));
    if (verdict.difference) seen = *verdict.difference;
    return verdict.difference.has_value();
  };
  VMM_ASSIGN(const bool again, differs(end));
  while (again && bad.instructions - good.instructions > 1) {
    Place middle = path_.place((good.instructions + bad.instructions) / 2);
    while (!middle.is_findable() && middle.instructions + 1 < bad.instructions)
      middle = path_.place(middle.instructions + 1);
    while (!middle.is_findable() && middle.instructions > good.instructions + 1)
      middle = path_.place(middle.instructions - 1);
    if (!middle.is_findable()) break;
    VMM_ASSIGN(const bool is_bad, differs(middle));
    (is_bad ? bad : good) = middle;
  }
  const bool in_one_go = start.pace == Pace::in_one_go;
  start.pace = Pace::one_by_one;
  const Difference found = seen;
  VMM_ASSIGN(const bool is_bad, differs(bad));
  run_engine(start, good);
  VMM_TRY(restore(backend, start));
  std::array<std::byte, max_instruction_bytes> bytes{};
  const auto code = std::span{bytes}.first(view_->fetch(vpmu::GuestLinear{good.rip}, bytes, start.state.cpl));
  return fmt::format(
      "lockstep: at RIP {:#x}, {}: {} is {:#x} by the engine and {:#x} by KVM; RFLAGS before it {:#x}; {} of {} "
      "instructions from {:#x}{}{}, after {} alike",
      good.rip, disassemble(code, CodeMode::bits64), found.what, found.ours, found.theirs, engine_.state().rflags,
      bad.instructions, end.instructions, start.state.rip, again ? "" : ", but not a second time",
      in_one_go && !is_bad ? ", and the engine does it right one by one" : "", statistics_->compared);
}

void LockstepRuns::count(const Start& start, const Place& to) {
  statistics_->compared += to.instructions;
  if (start.state.cpl == 3) statistics_->user += to.instructions;
  if (start.pace == Pace::one_by_one) statistics_->one_by_one += to.instructions;
  if (platform_.used() != nullptr) ++statistics_->vectors;
  ++statistics_->runs;
  path_.count();
}

}  // namespace vmm
