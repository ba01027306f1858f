#include "vcpu/breakpoints.hpp"

#include <algorithm>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned dr_count = 4;
/// DR7: local and global enable of breakpoint i. SDM 3B 17.2.4.
constexpr std::uint64_t enable_bits(unsigned i) { return 3ULL << (2 * i); }
constexpr std::uint64_t condition_bits(unsigned i) { return 0xFULL << (16 + 4 * i); }
/// R/W of breakpoint i; 0 is execution.
constexpr std::uint64_t access_bits(unsigned i) { return 3ULL << (16 + 4 * i); }

}  // namespace

bool Breakpoints::place_if_free(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders) {
  auto* const free = std::ranges::find(holders, Holder::nobody);
  if (free == holders.end()) return false;
  const auto slot = static_cast<unsigned>(free - holders.begin());
  *free = Holder::us;
  debug.arch.debugreg[slot] = at.value();
  debug.arch.debugreg[7] &= ~condition_bits(slot);  // execution, one byte
  debug.arch.debugreg[7] |= vpmu::bit(2 * slot + 1);
  return true;
}

// Takes a free register. If there is none, it takes the guest's last one: a guest kernel whose RDPMC faults would be
// worse.
void Breakpoints::place(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders) {
  if (place_if_free(debug, at, holders)) return;
  ++displaced_;
  const auto last = std::ranges::find(holders.rbegin(), holders.rend(), Holder::guest);
  *(last.base() - 1) = Holder::nobody;
  place_if_free(debug, at, holders);
}

Result<void> Breakpoints::apply() {
  const Wanted wanted{.gate = gate_, .stops = stops_, .step = step_};
  const bool walks = stops_.size != 0;
  // While ours are in the debug registers, KVM does not apply the guest's writes to them. DR7.GD makes each write exit
  // to us, and other code may have written them since the last entry.
  if (gate_ || walks) {
    VMM_ASSIGN(const kvm_debugregs now, guests_registers());
    if (detects_) VMM_TRY(detect(true));
    if (!x86::dr6::BD::test(now.dr6))
      guest_.dr6 = now.dr6;  // else a MOV DR is on its way to the stop at the #DB handler
    const bool same = now.dr7 == guest_.dr7 && std::ranges::equal(now.db, guest_.db);
    if (wanted == applied_ && !unarmed_ && same) return {};
    guest_.dr7 = now.dr7;
    std::ranges::copy(now.db, guest_.db);
  } else {
    VMM_TRY(detect(false));
    if (wanted == applied_ && !unarmed_) return {};
  }
  kvm_guest_debug debug{};
  ours_ = 0;
  if (gate_ || walks || step_) {
    debug.control = KVM_GUESTDBG_ENABLE;
    if (step_) debug.control |= KVM_GUESTDBG_SINGLESTEP;
    if (step_ || walks) debug.control |= KVM_GUESTDBG_BLOCKIRQ;
  }
  if (gate_ || walks) {
    debug.control |= KVM_GUESTDBG_USE_HW_BP;
    debug.arch.debugreg[7] =
        (guest_.dr7 & ~x86::dr7::GD::mask) | x86::dr7::fixed | (exits_on_detect_ ? x86::dr7::GD::mask : 0);
    Holders holders{};
    for (unsigned i = 0; i < dr_count; ++i) {
      debug.arch.debugreg[i] = guest_.db[i];
      holders[i] = (guest_.dr7 & enable_bits(i)) != 0 ? Holder::guest : Holder::nobody;
    }
    if (gate_) place(debug, *gate_, holders);
    VMM_TRY(detect(debug_gate_ && gate_ && place_if_free(debug, *debug_gate_, holders)));
    for (unsigned i = 0; i < stops_.size; ++i) {
      if (stops_.at[i] == gate_ || (detects_ && stops_.at[i] == debug_gate_)) continue;
      if (i == 0 && !step_)
        place(debug, stops_.at[i], holders);
      else
        place_if_free(debug, stops_.at[i], holders);
    }
    for (unsigned i = 0; i < dr_count; ++i)
      if (holders[i] == Holder::us) ours_ |= vpmu::bit(i);
  }
  VMM_TRY(backend_->set_guest_debug(debug));
  unarmed_ = false;
  applied_ = wanted;
  return {};
}

// Also sets DR7.GD again: KVM clears it whenever it delivers a #DB.
Result<void> Breakpoints::detect(bool on) {
  if (!on && !detects_) return {};
  VMM_ASSIGN(kvm_debugregs regs, backend_->debugregs());
  if (!detects_) guests_detect_ = regs.dr7 & x86::dr7::GD::mask;
  const std::uint64_t dr7 = (regs.dr7 & ~x86::dr7::GD::mask) | (on ? x86::dr7::GD::mask : guests_detect_);
  detects_ = on;
  if (dr7 == regs.dr7) return {};
  regs.dr7 = dr7;
  return backend_->set_debugregs(regs);
}

Result<kvm_debugregs> Breakpoints::guests_registers() {
  VMM_ASSIGN(kvm_debugregs regs, backend_->debugregs());
  if (detects_) regs.dr7 = (regs.dr7 & ~x86::dr7::GD::mask) | guests_detect_;
  return regs;
}

Result<void> Breakpoints::set_guests_registers(kvm_debugregs regs) {
  if (detects_) {
    guests_detect_ = regs.dr7 & x86::dr7::GD::mask;
    regs.dr7 |= x86::dr7::GD::mask;
  }
  guest_.dr6 = regs.dr6;
  return backend_->set_debugregs(regs);
}

Result<void> Breakpoints::take_detection_back() {
  VMM_ASSIGN(kvm_debugregs regs, backend_->debugregs());
  regs.dr6 = guest_.dr6;
  return backend_->set_debugregs(regs);
}

Result<void> Breakpoints::put_away() {
  if (!detects_) return {};
  unarmed_ = true;
  VMM_ASSIGN(const kvm_debugregs regs, backend_->debugregs());
  if (x86::dr6::BD::test(regs.dr6) && regs.dr6 != guest_.dr6) {
    VMM_ASSIGN(kvm_vcpu_events events, backend_->events());
    if (events.exception.nr == 1 && (events.exception.injected != 0 || events.exception.pending != 0)) {
      events.exception.injected = events.exception.pending = 0;
      VMM_TRY(backend_->set_events(events));
      VMM_TRY(take_detection_back());
    }
  }
  return detect(false);
}

kvm_guest_debug Breakpoints::beside_gate(const kvm_guest_debug& others) {
  given_others();
  kvm_guest_debug debug = others;
  if (!gate_) return debug;
  Holders holders{};
  if ((debug.control & KVM_GUESTDBG_USE_HW_BP) == 0) {
    std::ranges::fill(debug.arch.debugreg, 0);
    debug.arch.debugreg[7] = x86::dr7::fixed;
  }
  for (unsigned i = 0; i < dr_count; ++i)
    if ((debug.arch.debugreg[7] & enable_bits(i)) != 0) holders[i] = Holder::guest;
  debug.control |= KVM_GUESTDBG_USE_HW_BP;
  place(debug, *gate_, holders);
  return debug;
}

// A trap of the guest comes before the breakpoint on the next instruction, which may be ours. SDM 3A table 6-2.
Breakpoints::Hit Breakpoints::classify(const Debug& exit, std::uint64_t rflags, bool kvm_may_step) const {
  if (exit.exception != 1 || exit.of_guest) return Hit::guest;
  const vpmu::GuestLinear pc{exit.pc};
  const bool bs = x86::dr6::BS::test(exit.dr6);
  if ((stops_at(pc) && !bs) || (applied_.step && bs)) return Hit::ours;
  const bool only_a_step = bs && !x86::dr6::B::test(exit.dr6);
  return only_a_step && kvm_may_step && !x86::rflags::TF::test(rflags) ? Hit::kvm : Hit::guest;
}

// A data breakpoint is reported after the instruction, together with the single-step. SDM 3B 17.2.3: DR6 also reports
// breakpoints that match without being enabled. One that ours has displaced has not matched.
Result<std::optional<Debug>> Breakpoints::guests_part(const Debug& exit) {
  std::uint64_t hit = applied_.step ? 0 : exit.dr6 & x86::dr6::BS::mask;
  if (x86::dr6::B::test(exit.dr6)) {
    VMM_ASSIGN(const kvm_debugregs guest, backend_->debugregs());
    for (unsigned i = 0; i < dr_count; ++i)
      if ((guest.dr7 & enable_bits(i)) != 0 && (guest.dr7 & access_bits(i)) != 0)
        hit |= exit.dr6 & vpmu::bit(i) & ~ours_;
  }
  if (hit == 0) return std::optional<Debug>{};
  Debug out = exit;
  out.dr6 = x86::dr6::fixed | hit;
  out.of_guest = true;
  return std::optional{out};
}

std::uint64_t Breakpoints::guests_at(vpmu::GuestLinear at) const {
  std::uint64_t hit = 0;
  for (unsigned i = 0; i < dr_count; ++i)
    if ((guest_.dr7 & enable_bits(i)) != 0 && (guest_.dr7 & access_bits(i)) == 0 && guest_.db[i] == at.value())
      hit |= vpmu::bit(i);
  return hit;
}

// SDM 3B 17.2.3: the processor never clears more than bits 3:0 of DR6.
Result<void> Breakpoints::inject(const Debug& exit) {
  constexpr std::uint64_t reasons = x86::dr6::B::mask | x86::dr6::BD::mask | x86::dr6::BS::mask | vpmu::bit(15);
  VMM_ASSIGN(kvm_debugregs regs, backend_->debugregs());
  regs.dr6 = (regs.dr6 & ~x86::dr6::B::mask) | (exit.dr6 & reasons) | x86::dr6::fixed;
  guest_.dr6 = regs.dr6;
  VMM_TRY(backend_->set_debugregs(regs));
  VMM_ASSIGN(kvm_vcpu_events events, backend_->events());
  events.exception.injected = 1;
  events.exception.nr = 1;
  events.exception.has_error_code = 0;
  return backend_->set_events(events);
}

}  // namespace vmm
