#include "soft/soft_port.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kvm/kick.hpp"
#include "support/error.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t rflags_if = vpmu::bit(9), rflags_rf = vpmu::bit(16);
constexpr std::uint64_t dr6_bs = vpmu::bit(14);
/// Instructions between two checks for interrupts.
constexpr std::uint64_t burst = 100'000;

}  // namespace

std::byte* SoftPort::Ram::page(vpmu::GuestPhysical page) {
  std::byte* const ram = ram_.page(page);
  return ram == nullptr && open ? scratch.data() : ram;
}

void SoftPort::Ram::will_write(vpmu::GuestPhysical page) {
  if (ram_.page(page) != nullptr) ram_.will_write(page);
}

vpmu::exec::Answer SoftPort::Platform::rdtsc(std::uint64_t& value) {
  value = port_->time_.tsc_after(port_->engine_.passed().instructions - port_->entered_at_);
  return vpmu::exec::Answer::done;
}

vpmu::exec::Answer SoftPort::Platform::rdtscp(std::uint64_t& value, std::uint64_t& aux) {
  if (!port_->has(vpmu::exec::CpuFeature::rdtscp)) return vpmu::exec::Answer::leave;
  aux = port_->s_.msrs.at(msr_tsc_aux);
  return rdtsc(value);
}

SoftPort::SoftPort(LinearMemory& memory, CpuidTable cpuid, const SoftStart& start, SoftBoard* board)
    : memory_{&memory},
      cpuid_{std::move(cpuid)},
      features_{cpuid_},
      own_board_{board == nullptr ? std::make_unique<SoftBoard>() : nullptr},
      board_{board == nullptr ? own_board_.get() : board},
      time_{board_->clock, default_tsc_khz},
      s_{.regs = start.regs, .sregs = start.sregs, .id = start.id},
      view_{*this, memory},
      interrupts_{s_, time_, &board_->interrupts},
      msrs_{s_, interrupts_, features_},
      system_{s_, view_, msrs_, interrupts_, cpuid_, features_},
      ram_{memory},
      platform_{*this},
      engine_{ram_, platform_, &host_code_, start.compiling},
      log_{start.log},
      devices_{start.devices} {
  s_.apic.reset(s_.id);
  if (start.waits_for_start) reset_by_init(s_);
  engine_.watch(kick_flag());
  board_->turns.add(*this);
}

Result<Exit> SoftPort::run() {
  VMM_TRY(complete_exit());
  for (;;) {
    take_turn();
    const bool is_let_in = !board_->turns.owns(s_.id);
    if (is_let_in && !kick_flag().is_set()) continue;  // the kick for which it was let in is over
    if (time_.ran() >= stop_after_) return Exit{TimeUp{}};
    if (kick_flag().is_set() || time_.take_due()) {
      set_mark(kicked_, 0);
      return Exit{Interrupted{}};
    }
    interrupts_.refresh();
    if (auto exit = take_events()) return *exit;
    if (is_at_rest()) {
      if (!rest()) return Exit{Hlt{}};
      continue;
    }
    s_.halted = false;
    const Watch w = watch_of(s_, guest_debug_);
    const bool one = s_.events.interrupt.shadow != 0 || (s_.regs.rflags & rflags_rf) != 0;
    if (auto exit = w.any() ? run_watched(w) : run_some(one ? 1 : std::min(burst, until_due()))) return *exit;
  }
}

// A vCPU that was let in for a kick holds the turn until run() has returned Interrupted, so that it is not let in
// twice. After another vCPU's turn, a page that this one wrote to without reporting may hold that vCPU's code.
void SoftPort::take_turn() {
  if (!kick_flag().is_set() || !board_->turns.holds(s_.id)) board_->turns.hold(s_.id);
  if (std::exchange(seen_changes_, board_->turns.changes()) != board_->turns.changes()) engine_.tell_of_writes_anew();
}

/// Instructions that may pass before run() must check something.
std::uint64_t SoftPort::until_due() const {
  return std::min({time_.until_due(), board_->clock.instructions_in(interrupts_.until_due()), stop_after_ - time_.ran(),
                   board_->turns.left(s_.id)});
}

std::uint64_t SoftPort::look_around(std::uint64_t /*left*/) {
  take_turn();
  interrupts_.refresh();
  return until_due();
}

std::optional<std::uint64_t> SoftPort::quiet_for() {
  if (kick_flag().is_set() || time_.ran() >= stop_after_) return 0;
  interrupts_.refresh();
  if (s_.events.nmi.pending != 0 || s_.apic.pending() || s_.init_pending) return 0;
  return until_due();
}

/// Whether a waiting event ends a halt, now or once KVM_GUESTDBG_BLOCKIRQ no longer holds it off.
bool SoftPort::is_woken() const {
  const auto& e = s_.events;
  const bool nmi = e.nmi.pending != 0 && e.nmi.masked == 0;
  return nmi || e.exception.injected != 0 || e.exception.pending != 0 ||
         ((s_.regs.rflags & rflags_if) != 0 && s_.apic.pending());
}

// A held-off event ends a halt nevertheless, as with KVM.
bool SoftPort::is_at_rest() const {
  return s_.waits_for_start || (s_.halted && ((guest_debug_.control & KVM_GUESTDBG_BLOCKIRQ) == 0 || !is_woken()));
}

bool SoftPort::is_ready() {
  interrupts_.refresh();
  if (time_.is_due() || s_.init_pending) return true;
  return s_.waits_for_start ? s_.start_pending.has_value() : !s_.halted || is_woken();
}

std::uint64_t SoftPort::until_ready() {
  const bool by_interrupt = !s_.waits_for_start && (s_.regs.rflags & rflags_if) != 0;
  return std::min(time_.until_wall_due(), by_interrupt ? interrupts_.until_due() : ~std::uint64_t{0});
}

bool SoftPort::may_be_woken() {
  return board_->interrupts.io_apic() != nullptr && !s_.waits_for_start && (s_.regs.rflags & rflags_if) != 0;
}

void SoftPort::kick() { set_mark(kicked_, kick_mark); }

/// The vCPU has nothing to run: waits for something. False if no vCPU will ever have anything to run.
bool SoftPort::rest() {
  constexpr std::chrono::milliseconds look_again{4};  // for kicks
  switch (board_->turns.rest()) {
    case Turns::Waker::processor: break;
    case Turns::Waker::device: board_->interrupts.io_apic()->wait(look_again); break;
    case Turns::Waker::nobody: return false;
  }
  return true;
}

/// Handles INIT, and after that a start-up IPI. SDM 3A 8.4.4.
void SoftPort::take_start() {
  if (std::exchange(s_.init_pending, false)) {
    reset_by_init(s_);
    interrupts_.reset();
    branch_steps_ = false;
    held_hits_ = 0;
  }
  if (!s_.waits_for_start) return;
  if (const auto vector = std::exchange(s_.start_pending, std::nullopt)) start_at_page(s_, *vector);
  stale_ = true;
}

// In the order of SDM 3A table 6-2, as far as these events occur here.
std::optional<Exit> SoftPort::take_events() {
  take_start();
  if (s_.waits_for_start) return std::nullopt;
  auto& e = s_.events;
  if (e.exception.injected != 0 || e.exception.pending != 0) {
    Exception exception{.vector = e.exception.nr, .error_code = std::nullopt};
    if (e.exception.has_error_code != 0) exception.error_code = e.exception.error_code;
    e.exception = {};
    return take(exception, exception.vector == vector_db ? EventKind::trap : EventKind::fault);
  }
  if ((guest_debug_.control & KVM_GUESTDBG_BLOCKIRQ) != 0 || e.interrupt.shadow != 0) return std::nullopt;
  if (e.nmi.pending != 0 && e.nmi.masked == 0) {
    --e.nmi.pending;
    e.nmi.masked = 1;
    ++statistics_.interrupts;
    return take({.vector = vector_nmi, .error_code = std::nullopt}, EventKind::trap);
  }
  const auto vector = (s_.regs.rflags & rflags_if) != 0 ? s_.apic.pending() : std::nullopt;
  if (!vector) return std::nullopt;
  s_.apic.accept(*vector);
  ++statistics_.interrupts;
  return take({.vector = *vector, .error_code = std::nullopt}, EventKind::trap);
}

std::optional<Exit> SoftPort::take(Exception exception, EventKind kind, std::uint8_t length) {
  if (exception.vector < 32 && exception.vector != vector_nmi) ++statistics_.exceptions;
  took_debug_ = exception.vector == vector_db && kind != EventKind::software;
  s_.halted = false;
  stale_ = true;
  pass_time(1);  // a guest whose handler always faults must run out of ticks too
  if (deliver(s_, view_, exception, kind, length)) return std::nullopt;
  return Exit{Shutdown{}};
}

Stop SoftPort::run_engine(std::uint64_t instructions) {
  if (flush_)
    engine_.load(engine_state(s_.regs, s_.sregs));
  else if (stale_)
    engine_.resume(engine_state(s_.regs, s_.sregs));
  flush_ = stale_ = false;
  entered_at_ = engine_.passed().instructions;
  const Stop stop = engine_.run(instructions);
  ram_.close();
  const std::uint64_t done = engine_.passed().instructions - entered_at_;
  s_.regs = kvm_state(engine_.state());
  if (done != 0 && (s_.regs.rflags & rflags_rf) != 0) {
    s_.regs.rflags &= ~rflags_rf;
    stale_ = true;
  }
  statistics_.instructions += done;
  pass_time(done);
  return stop;
}

/// Runs at most `most` instructions, and at least one unless it faults.
std::optional<Exit> SoftPort::run_some(std::uint64_t most) {
  s_.events.interrupt.shadow = 0;
  const Stop stop = run_engine(most);
  return stop == Stop::budget || stop == Stop::again ? std::nullopt : run_what_the_engine_left(stop);
}

void SoftPort::complete(std::uint8_t length) {
  s_.regs.rip += length;
  s_.regs.rflags &= ~rflags_rf;
  ++statistics_.instructions;
  ++statistics_.system;
  pass_time(1);
  stale_ = true;
}

std::optional<Exit> SoftPort::run_system(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  const std::uint64_t rf = s_.regs.rflags & rflags_rf;
  if (i.op != SystemOp::iret) s_.regs.rflags &= ~rflags_rf;
  stale_ = true;
  flush_ = flush_ || changes_translations(i);
  const SystemResult result = system_.run(i, operand);
  open_ = {.length = i.length};
  if (const auto* raised = std::get_if<Raised>(&result)) {
    s_.regs.rflags |= raised->kind == EventKind::fault ? rf : 0;
    return take(raised->exception, raised->kind, i.length);
  }
  if (const auto* msr = std::get_if<MsrAccess>(&result)) {
    open_.kind = msr->write ? Open::Kind::wrmsr : Open::Kind::read;
    const MsrReply reply{open_.data, open_.gp};
    if (msr->write) return Exit{MsrWrite{msr->index, msr->value, MsrReason::filter, reply}};
    return Exit{MsrRead{msr->index, MsrReason::filter, reply}};
  }
  if (std::holds_alternative<CounterAccess>(result)) {
    open_.kind = Open::Kind::read;
    return Exit{CounterRead{static_cast<std::uint32_t>(s_.regs.rcx), {open_.data, open_.gp}}};
  }
  if (const auto* port = std::get_if<PortAccess>(&result)) {
    open_.kind = port->write ? Open::Kind::out : Open::Kind::in;
    open_.bytes = port->bytes;
    const auto data = std::span{open_.port}.first(port->bytes);
    if (!port->write) return Exit{PortRead{port->port, port->bytes, data}};
    std::memcpy(data.data(), &s_.regs.rax, data.size());
    return Exit{PortWrite{port->port, port->bytes, data}};
  }
  ++statistics_.instructions;
  ++statistics_.system;
  pass_time(1);
  return std::nullopt;
}

Result<void> SoftPort::complete_exit() {
  const Open open = std::exchange(open_, {});
  if (open.kind == Open::Kind::none) return {};
  if (open.gp != 0) {
    s_.events.exception.injected = 1;
    s_.events.exception.nr = vector_gp;
    s_.events.exception.has_error_code = 1;
    s_.events.exception.error_code = 0;
    return {};
  }
  if (open.kind == Open::Kind::read) {
    s_.regs.rax = open.data & 0xFFFF'FFFF;
    s_.regs.rdx = open.data >> 32;
  }
  if (open.kind == Open::Kind::in) {
    if (open.bytes == 4) s_.regs.rax = 0;
    std::memcpy(&s_.regs.rax, open.port.data(), open.bytes);
  }
  complete(open.length);
  if (open.trap) {
    s_.debug.dr6 |= dr6_bs;
    s_.events.exception.injected = 1;
    s_.events.exception.nr = vector_db;
    s_.events.exception.has_error_code = 0;
  }
  return {};
}

void SoftPort::written(vpmu::GuestPhysical page) { engine_.written(page); }

void SoftPort::pass_time(std::uint64_t ticks) {
  time_.pass(ticks);
  board_->turns.pass(ticks);
}

Result<void> SoftPort::set_regs(const kvm_regs& regs) {
  s_.regs = regs;
  stale_ = true;
  return {};
}

Result<void> SoftPort::set_sregs(const kvm_sregs& sregs) {
  s_.sregs = sregs;
  stale_ = true;
  return {};
}

Result<void> SoftPort::forget_translations() {
  flush_ = true;
  return {};
}

Result<void> SoftPort::set_events(const kvm_vcpu_events& events) {
  s_.events = events;
  return {};
}

Result<void> SoftPort::set_debugregs(const kvm_debugregs& regs) {
  s_.debug = regs;
  return {};
}

Result<void> SoftPort::set_guest_debug(const kvm_guest_debug& debug) {
  guest_debug_ = debug;
  return {};
}

Result<std::uint64_t> SoftPort::msr(std::uint32_t index) {
  if (index == vpmu::msr::IA32_DEBUGCTL.value()) return branch_steps_ ? vpmu::reg::debugctl::BTF::mask : 0;
  const vpmu::MsrReadResult result = msrs_.read(index);
  if (result.status != vpmu::MsrStatus::ok) return host_error("no such MSR in a vCPU without KVM");
  return result.value;
}

// The PMU holds DEBUGCTL; only BTF has an effect here.
Result<void> SoftPort::set_msr(std::uint32_t index, std::uint64_t value) {
  if (index == vpmu::msr::IA32_DEBUGCTL.value()) {
    branch_steps_ = vpmu::reg::debugctl::BTF::test(value);
    return {};
  }
  if (msrs_.set(index, value) == vpmu::MsrStatus::ok) return {};
  return host_error("no such MSR in a vCPU without KVM");
}

Result<Stored> SoftPort::store_lvtpc(std::uint32_t value) {
  s_.apic.write(apic::lvtpc, value);
  return Stored::done;
}

Result<void> SoftPort::nmi() {
  add_nmi(s_);
  return {};
}

Result<void> SoftPort::interrupt(std::uint32_t, std::uint8_t vector) {
  s_.apic.request(vector);
  return {};
}

void SoftPort::visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  visit("soft.instructions", statistics_.instructions);
  visit("soft.system", statistics_.system);
  visit("soft.mmio", statistics_.mmio);
  visit("soft.exceptions", statistics_.exceptions);
  visit("soft.interrupts", statistics_.interrupts);
  for (const auto& [mnemonic, count] : statistics_.unknown) visit(fmt::format("soft.unknown.{}", mnemonic), count);
  visit("soft.decoded_blocks", engine_.decoded_blocks());
  visit("soft.compiled_blocks", engine_.compiled_blocks());
}

}  // namespace vmm
