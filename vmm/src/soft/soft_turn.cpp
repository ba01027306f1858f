#include "soft/soft_turn.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvm/kick.hpp"
#include "support/x86.hpp"

namespace vmm {

SoftTurn::SoftTurn(SoftCore& core, const DebugUnit& debug, volatile std::uint8_t& kick)
    : core_{&core}, debug_{&debug}, kicked_{&kick}, kick_flag_{kick} {
  core.board.add(*this);
}

// A vCPU that was let in for a kick holds the turn until run() has returned Interrupted, so that it is not let in
// twice.
bool SoftTurn::take() {
  RoundRobin& turns = core_->board.turns;
  if (!is_kicked() || !turns.holds(core_->state.id)) turns.hold(core_->state.id);
  return std::exchange(seen_changes_, turns.changes()) != turns.changes();
}

std::uint64_t SoftTurn::until_due() const {
  const SoftCore& c = *core_;
  return std::min({c.time.until_due(), c.board.clock.instructions_in(c.interrupts.until_due()),
                   stop_after_ - std::min(stop_after_, c.time.ran()), c.board.turns.left(c.state.id)});
}

/// Whether a waiting event ends a halt, now or once KVM_GUESTDBG_BLOCKIRQ no longer holds it off.
bool SoftTurn::is_woken() const {
  const SoftState& s = core_->state;
  const auto& e = s.events;
  const bool nmi = e.nmi.pending != 0 && e.nmi.masked == 0;
  return nmi || e.exception.injected != 0 || e.exception.pending != 0 ||
         (x86::rflags::IF::test(s.regs.rflags) && s.apic.pending());
}

// A held-off event ends a halt nevertheless, as with KVM.
bool SoftTurn::is_at_rest() const {
  return core_->state.waits_for_start || (core_->state.halted && (!debug_->blocks_interrupts() || !is_woken()));
}

bool SoftTurn::is_ready() {
  const SoftState& s = core_->state;
  core_->interrupts.refresh();
  if (core_->time.is_due() || s.init_pending) return true;
  return s.waits_for_start ? s.start_pending.has_value() : !s.halted || is_woken();
}

std::uint64_t SoftTurn::until_ready() {
  const SoftState& s = core_->state;
  const bool by_interrupt = !s.waits_for_start && x86::rflags::IF::test(s.regs.rflags);
  return std::min(core_->time.until_wall_due(), by_interrupt ? core_->interrupts.until_due() : ~std::uint64_t{0});
}

bool SoftTurn::may_be_woken() {
  const SoftState& s = core_->state;
  return core_->board.interrupts.io_apic() != nullptr && !s.waits_for_start && x86::rflags::IF::test(s.regs.rflags);
}

void SoftTurn::kick() { set_mark(*kicked_, kick_mark); }

void SoftTurn::forget_kick() { set_mark(*kicked_, 0); }

bool SoftTurn::rest() {
  constexpr std::chrono::milliseconds look_again{4};  // for kicks
  switch (core_->board.turns.rest()) {
    case RoundRobin::Waker::processor: break;
    case RoundRobin::Waker::device: core_->board.interrupts.io_apic()->wait(look_again); break;
    case RoundRobin::Waker::nobody: return false;
  }
  return true;
}

}  // namespace vmm
