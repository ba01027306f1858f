#include "sources/lockstep_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sources/instruction.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t window_instructions = 1000;
constexpr std::chrono::nanoseconds longest_gap = std::chrono::milliseconds{200};
constexpr std::uint64_t rflags_tf = vpmu::bit(8), rflags_rf = vpmu::bit(16);
constexpr std::array names{"RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"};

/// Bits of every register in which the two may differ. KVM on AMD lets the guest run with the host's CR4.MCE and hides that by an intercept;
/// an emulated AMD host does not intercept the read.
std::uint64_t uncompared_bits(std::span<const std::byte> code) {
  constexpr std::uint64_t mce = vpmu::bit(6);
  const bool rex = !code.empty() && (std::to_integer<unsigned>(code[0]) & 0xF0) == 0x40;
  const auto at = [&](std::size_t i) { return i + (rex ? 1 : 0) < code.size() ? std::to_integer<unsigned>(code[i + (rex ? 1 : 0)]) : 0U; };
  return at(0) == 0x0F && at(1) == 0x20 && (at(2) >> 3 & 7) == 4 ? mce : 0;
}

}  // namespace

Result<void> LockstepSource::program(const vpmu::CountPlan&) { return {}; }
Result<vpmu::CountDeltas> LockstepSource::sync(VcpuPort&) { return vpmu::CountDeltas{}; }
Result<RunEnd> LockstepSource::walk(VcpuPort& port, const vpmu::CountPlan&) { return run(port, std::nullopt); }

// A plan that wants branches makes StepSource single-step, whatever the guest's counters do.
Result<void> LockstepSource::begin_window() {
  begin_ = false;
  window_left_ = window_instructions;
  ++statistics_.windows;
  return steps_.program(vpmu::CountPlan{.branches_wanted = true});
}

Result<void> LockstepSource::end_window() {
  window_left_ = 0;
  return steps_.program({});
}

Result<RunEnd> LockstepSource::run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  if (window_left_ == 0 && (begin_ || statistics_.windows == 0)) VMM_TRY(begin_window());
  if (window_left_ != 0) {
    VMM_ASSIGN(RunEnd end, step(port, at_most));
    end.retired.reset();  // counters count nothing here
    if (--window_left_ == 0) VMM_TRY(end_window());
    return end;
  }
  const std::chrono::nanoseconds gap{random_() % static_cast<std::uint64_t>(longest_gap.count())};
  VMM_ASSIGN(RunEnd end, steps_.run(port, at_most ? std::min(*at_most, gap) : gap));
  begin_ = end.exit && std::holds_alternative<Interrupted>(*end.exit);
  return end;
}

Result<RunEnd> LockstepSource::step(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) {
  VMM_ASSIGN(const auto trial, try_one(port));
  const std::uint64_t interrupts = steps_.statistics().interrupts;
  const std::uint64_t faults = steps_.statistics().faults;
  VMM_ASSIGN(RunEnd end, steps_.run(port, at_most));
  if (!trial) return end;
  if (end.retired && !end.exit) {
    VMM_TRY(compare(port, *trial));
  } else if (trial->retired && steps_.statistics().faults != faults && steps_.statistics().interrupts == interrupts) {
    return host_error(fmt::format("lockstep: the engine ran what faults in KVM, at RIP {:#x}: {}", trial->before.rip,
                                  disassemble(std::span{trial->bytes}.first(trial->fetched), CodeSize::bits64)));
  } else {
    ++statistics_.unclear;
  }
  return end;
}

/// Empty where the next thing is no instruction, or none of the engine's.
Result<std::optional<LockstepSource::Trial>> LockstepSource::try_one(VcpuPort& port) {
  if (steps_.in_exit()) return std::optional<Trial>{};
  Trial t;
  VMM_ASSIGN(t.before, port.regs());
  VMM_ASSIGN(t.sregs, port.sregs());
  if (code_size(t.sregs) != CodeSize::bits64 || (t.before.rflags & rflags_tf) != 0) return std::optional<Trial>{};
  t.fetched = view_->fetch(vpmu::GuestLinear{t.before.rip}, t.bytes, cpl_of(t.sregs));
  ram_.begin();
  engine_.load(engine_state(t.before, t.sregs));
  constexpr unsigned most_turns = 4096;
  Stop stop = Stop::again;
  for (unsigned turn = 0; turn < most_turns && stop == Stop::again; ++turn) stop = engine_.run(1);
  t.retired = stop == Stop::budget && engine_.passed().instructions == 1;
  t.after = engine_.state();
  return std::optional{t};
}

Result<void> LockstepSource::compare(VcpuPort& port, const Trial& t) {
  if (!t.retired) {
    ++statistics_.left;
    return {};
  }
  VMM_ASSIGN(const kvm_regs regs, port.regs());
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  const vpmu::exec::CpuState kvm = engine_state(regs, sregs);
  const auto code = std::span{t.bytes}.first(t.fetched);
  const auto differs = [&](const std::string& what, std::uint64_t ours, std::uint64_t theirs) -> Result<void> {
    return host_error(fmt::format("lockstep: at RIP {:#x}, {}: {} is {:#x} by the engine and {:#x} by KVM; RFLAGS before it {:#x}, after {} alike",
                                  t.before.rip, disassemble(code, CodeSize::bits64), what, ours, theirs, t.before.rflags, statistics_.compared));
  };
  for (unsigned n = 0; n < names.size(); ++n)
    if (((t.after.gpr[n] ^ kvm.gpr[n]) & ~uncompared_bits(code)) != 0) return differs(names[n], t.after.gpr[n], kvm.gpr[n]);
  if (t.after.rip != kvm.rip) return differs("RIP", t.after.rip, kvm.rip);
  const std::uint64_t compared = ~(undefined_flags(code, CodeSize::bits64) | rflags_tf | rflags_rf);
  if (((t.after.rflags ^ kvm.rflags) & compared) != 0) return differs("RFLAGS", t.after.rflags, kvm.rflags);
  if (t.after.fs_base != kvm.fs_base) return differs("FS base", t.after.fs_base, kvm.fs_base);
  if (t.after.gs_base != kvm.gs_base) return differs("GS base", t.after.gs_base, kvm.gs_base);
  if (const auto at = ram_.difference()) {
    const auto theirs = ram_.in_guest(*at);
    return differs(fmt::format("memory at {:#x}", at->value()), ram_.read_word(*at, 8).value_or(0), theirs);
  }
  ++statistics_.compared;
  ++statistics_.mnemonics[mnemonic_of(code, CodeSize::bits64)];
  return {};
}

void LockstepSource::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("pmu.lockstep.compared", statistics_.compared);
  visit("pmu.lockstep.left", statistics_.left);
  visit("pmu.lockstep.unclear", statistics_.unclear);
  visit("pmu.lockstep.windows", statistics_.windows);
  for (const auto& [mnemonic, count] : statistics_.mnemonics) visit(fmt::format("pmu.lockstep.compared.{}", mnemonic), count);
  steps_.visit_statistics(visit);
}

}  // namespace vmm
