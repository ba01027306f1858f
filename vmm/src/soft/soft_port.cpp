#include "soft/soft_port.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
/// Instructions between two looks at what may interrupt.
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
  value = port_->s_.tsc + port_->engine_.passed().instructions - port_->entered_at_;
  return vpmu::exec::Answer::done;
}

vpmu::exec::Answer SoftPort::Platform::rdtscp(std::uint64_t& value, std::uint64_t& aux) {
  if (!port_->has(vpmu::exec::CpuFeature::rdtscp)) return vpmu::exec::Answer::leave;
  aux = port_->s_.msrs.at(msr_tsc_aux);
  return rdtsc(value);
}

SoftPort::SoftPort(LinearMemory& memory, CpuidTable cpuid, const SoftStart& start, IoApic* io_apic,
                   std::uint64_t tsc_khz)
    : memory_{&memory},
      cpuid_{std::move(cpuid)},
      features_{cpuid_},
      time_{tsc_khz},
      s_{.regs = start.regs, .sregs = start.sregs},
      view_{*this, memory},
      interrupts_{s_, time_, io_apic},
      msrs_{s_, interrupts_, features_},
      system_{s_, view_, msrs_, interrupts_, cpuid_, features_},
      ram_{memory},
      platform_{*this},
      engine_{ram_, platform_, &host_code_, start.compiling},
      log_{start.log},
      devices_{start.devices} {
  engine_.watch(kicked_);
}

Result<Exit> SoftPort::run() {
  VMM_TRY(complete_exit());
  for (;;) {
    if (time_.ran() >= stop_after_) return Exit{TimeUp{}};
    if (kicked_ != 0 || time_.take_due()) {
      kicked_ = 0;
      return Exit{Interrupted{}};
    }
    interrupts_.refresh();
    if (auto exit = take_events()) return *exit;
    if (s_.halted && !event_is_held_off()) {
      if (!halt()) return Exit{Hlt{}};
      continue;
    }
    s_.halted = false;
    const Watch w = watch_of(s_, guest_debug_);
    const bool one = s_.events.interrupt.shadow != 0 || (s_.regs.rflags & rflags_rf) != 0;
    auto exit =
        w.any()
            ? run_watched(w)
            : run_some(one ? 1
                           : std::min({burst, time_.until_due(), interrupts_.until_due(), stop_after_ - time_.ran()}));
    if (exit) return *exit;
  }
}

std::uint64_t SoftPort::quiet_for() {
  if (kicked_ != 0 || time_.ran() >= stop_after_) return 0;
  interrupts_.refresh();
  if (s_.events.nmi.pending != 0 || s_.apic.pending()) return 0;
  return std::min({time_.until_due(), interrupts_.until_due(), stop_after_ - time_.ran()});
}

/// Lets time go on to what wakes the vCPU. Where that can only be a device, waits for it; false when nothing ever will.
bool SoftPort::halt() {
  constexpr std::chrono::milliseconds look_again{4};  // for kicks
  const auto waited = time_.wait(interrupts_.until_due());
  s_.tsc += waited.value_or(0);
  if (waited) return true;
  IoApic* const devices = interrupts_.io_apic();
  if (devices == nullptr || (s_.regs.rflags & rflags_if) == 0) return false;
  devices->wait(look_again);
  return true;
}

// The order of SDM 3A table 6-2, as far as there is more than one event here.
std::optional<Exit> SoftPort::take_events() {
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

/// Whether what take_events() would take ends a halt though KVM_GUESTDBG_BLOCKIRQ keeps it from being taken, as with
/// KVM.
bool SoftPort::event_is_held_off() const {
  if ((guest_debug_.control & KVM_GUESTDBG_BLOCKIRQ) == 0) return false;
  const bool nmi = s_.events.nmi.pending != 0 && s_.events.nmi.masked == 0;
  return nmi || ((s_.regs.rflags & rflags_if) != 0 && s_.apic.pending());
}

std::optional<Exit> SoftPort::take(Exception exception, EventKind kind, std::uint8_t length) {
  if (exception.vector < 32 && exception.vector != vector_nmi) ++statistics_.exceptions;
  s_.halted = false;
  stale_ = true;
  pass_time(1);  // a guest whose handler faults at once must not keep us for ever
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

/// Runs at most so many instructions, at least one unless it faults.
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
  s_.tsc += ticks;
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

// Of DEBUGCTL the PMU keeps all but what BTF does.
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

// One waits while one is served. SDM 3A 6.7.1.
Result<void> SoftPort::nmi() {
  const std::uint8_t most = s_.events.nmi.masked != 0 ? 1 : 2;
  s_.events.nmi.pending = std::min<std::uint8_t>(static_cast<std::uint8_t>(s_.events.nmi.pending + 1), most);
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
