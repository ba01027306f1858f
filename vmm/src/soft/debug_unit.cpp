#include "soft/debug_unit.hpp"

#include <algorithm>
#include <utility>

#include "support/x86.hpp"

namespace vmm {
namespace {

/// DR6: B0 to B3.
constexpr std::uint64_t breakpoints = 0xF;

}  // namespace

// SDM 3A 6.8.3, 3B 17.3.1. Behind MOV SS an instruction breakpoint does not hit, as if RF were 1, except for one that a
// host has set to stop there: it hits once, in the run() that began before MOV SS.
std::uint64_t DebugUnit::hits_before(const Watch& w) const {
  const bool resumes = x86::rflags::RF::test(s_->regs.rflags) || (is_behind_mov_ss() && !(w.to_host && loaded_ss_));
  return resumes ? 0 : execution_hits(w, instruction_pointer(s_->regs, s_->sregs).value());
}

std::uint64_t DebugUnit::take_held_hits() { return std::exchange(held_hits_, 0); }

// By TF before the instruction, but for SYSCALL and SYSRET by TF after it. With DEBUGCTL.BTF only branches trap. SDM 3B
// 17.3.1.4, 17.4.3.
std::uint64_t DebugUnit::trap_behind(const Watch& w, const std::optional<Instruction>& i, std::uint64_t next,
                                     bool exits) const {
  const bool late = i && (i->is(SystemOp::syscall) || i->is(SystemOp::sysret));
  const bool traps = late ? x86::rflags::TF::test(s_->regs.rflags) : w.guest_step;
  const bool went_on = s_->regs.rip == next || exits;
  return traps && !(branch_steps_ && went_on) ? x86::dr6::BS::mask : 0;
}

// By TF, or by a data breakpoint that it reaches. SDM 3B 17.3.1.2, 17.3.1.4.
bool DebugUnit::runs_by_iterations(const Watch& w, const Instruction& i, std::span<const Access> first) const {
  if (!i.rep) return false;
  constexpr std::uint64_t widest = 8, max = 1ULL << 32;
  const std::uint64_t reach = widest * (std::min<std::uint64_t>(s_->regs.rcx, max) + 1);
  return w.guest_step || std::ranges::any_of(first, [&](const Access& a) { return watches_data_near(w, a.at, reach); });
}

void DebugUnit::report(std::uint64_t hits) {
  s_->debug.dr6 = (s_->debug.dr6 & ~breakpoints) | hits;
  branch_steps_ = false;
}

void DebugUnit::restore(const Image& image) {
  held_hits_ = image.held_hits & breakpoints;
  branch_steps_ = image.branch_steps != 0;
}

}  // namespace vmm
