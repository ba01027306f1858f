// Tells whose a vCPU's Debug exits are: the guest's own debugging, ours, or the RDPMC gate's.
#include <array>

#include "pmu/pmu_vcpu.hpp"
#include "support/x86.hpp"

namespace vmm {
std::optional<std::byte> PmuVcpu::code_at(std::uint64_t at) {
  std::array<std::byte, 1> code{};
  const auto sregs = backend_->sregs();
  if (!sregs || view_.fetch(vpmu::GuestLinear{at}, code, cpl_of(*sregs)) == 0) return std::nullopt;
  return code[0];
}

// On AMD, KVM single-steps while an NMI is pending. A trap after the POPF that clears TF looks the same.
Result<bool> PmuVcpu::may_be_kvms(const Debug& exit, const kvm_regs& regs) {
  constexpr std::byte popf{0x9D};
  if (exit.of_guest || x86::rflags::TF::test(regs.rflags)) return false;
  VMM_ASSIGN(const kvm_vcpu_events events, backend_->events());
  return events.nmi.pending != 0 && code_at(exit.pc - 1) != popf;
}

// INT1 sets nothing in DR6. On AMD, KVM exits after it; on Intel, at it.
bool PmuVcpu::stands_at_int1(const Debug& exit, const kvm_regs& regs) {
  constexpr std::uint64_t reasons = 0xE00F;
  constexpr std::byte int1{0xF1};
  if (exit.of_guest || exit.exception != 1 || (exit.dr6 & reasons) != 0) return false;
  return code_at(regs.rip) == int1 && code_at(regs.rip - 1) != int1;
}

// A MOV DR that must take effect at once, rather than at the next VM entry. SDM 3B 17.2.4: DR7.GD, DR6.BD.
Result<bool> PmuVcpu::on_debug_move(const Debug& exit) {
  if (exit.of_guest || exit.exception != x86::vector::DB || x86::dr6::BS::test(exit.dr6)) return false;
  if (breakpoints_.detects() && vpmu::GuestLinear{exit.pc} == breakpoints_.debug_gate()) {
    VMM_TRY(debug_moves_.on_debug_handler());
    return true;
  }
  if (!x86::dr6::BD::test(exit.dr6)) return false;
  VMM_ASSIGN(const bool next, debug_moves_.is_next());
  if (next) VMM_TRY(debug_moves_.run());
  return next;
}

Result<bool> PmuVcpu::on_debug(const Debug& exit) {
  ++statistics_.debug_exits;
  VMM_ASSIGN(const bool moved, on_debug_move(exit));
  got_on_ = got_on_ || moved;
  if (moved) return true;
  VMM_ASSIGN(kvm_regs regs, backend_->regs());
  VMM_ASSIGN(const bool kvm_may_step, may_be_kvms(exit, regs));
  switch (breakpoints_.classify(exit, regs.rflags, kvm_may_step)) {
    case Breakpoints::Hit::guest:
      if (stands_at_int1(exit, regs)) {
        ++regs.rip;
        VMM_TRY(backend_->set_regs(regs));
      }
      ++statistics_.guest_debug;
      got_on_ = true;
      router_.on_debug_exception();
      VMM_TRY(breakpoints_.inject(exit));
      return true;
    case Breakpoints::Hit::kvm: ++statistics_.kvm_debug; return true;
    case Breakpoints::Hit::ours: break;
  }
  const bool at_gate = breakpoints_.gate() && exit.pc == breakpoints_.gate()->value();
  got_on_ = got_on_ || at_gate;
  if (at_gate)
    VMM_TRY(gate_.on_fault_handler([this](std::uint32_t ecx, unsigned cpl, bool pce) { return rdpmc(ecx, cpl, pce); }));
  return true;
}

// The next run() gives the source its plan again.
Result<Exit> PmuVcpu::run_debugged(const kvm_guest_debug& debugging) {
  if (last_exit_ == LastExit::open) {
    VMM_TRY(backend_->complete_exit());
    last_exit_ = LastExit::completed;
  }
  VMM_TRY(source_->program({}));
  VMM_TRY(breakpoints_.put_away());
  plan_.stale = true;
  for (;;) {
    VMM_TRY(deliver_pmis());
    VMM_TRY(backend_->set_guest_debug(breakpoints_.beside_gate(debugging)));
    VMM_ASSIGN(const Exit exit, backend_->run());
    ++statistics_.debugged_runs;
    const auto* const debug = std::get_if<Debug>(&exit);
    if (debug == nullptr) {
      VMM_ASSIGN(const bool answered, handle(exit));
      if (!answered) return exit;
      continue;
    }
    const bool at_gate = breakpoints_.gate() && debug->pc == breakpoints_.gate()->value();
    if (!at_gate) return exit;
    VMM_TRY(gate_.on_fault_handler([this](std::uint32_t ecx, unsigned cpl, bool pce) { return rdpmc(ecx, cpl, pce); }));
    if ((debugging.control & KVM_GUESTDBG_SINGLESTEP) != 0) return exit;
  }
}

}  // namespace vmm
