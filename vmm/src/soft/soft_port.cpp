#include "soft/soft_port.hpp"

#include <algorithm>
#include <cstring>

#include "support/error.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t rflags_if = vpmu::bit(9), rflags_rf = vpmu::bit(16);
constexpr std::uint64_t dr6_fixed = 0xFFFF'0FF0, dr6_bs = vpmu::bit(14);
/// Instructions between two looks at what may interrupt.
constexpr std::uint64_t burst = 100'000;
constexpr std::uint32_t msr_tsc = 0x10;
constexpr std::size_t longest_instruction = 15;

vpmu::GuestPhysical page_of(vpmu::GuestPhysical at) { return vpmu::GuestPhysical{at.value() & ~(vpmu::page_size - 1)}; }

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

SoftPort::SoftPort(LinearMemory& memory, CpuidTable cpuid, const kvm_sregs& sregs, const kvm_regs& regs, std::uint64_t tsc_khz)
    : memory_{&memory},
      cpuid_{std::move(cpuid)},
      time_{tsc_khz},
      s_{.regs = regs, .sregs = sregs},
      view_{*this, memory},
      system_{s_, view_, cpuid_},
      ram_{memory},
      platform_{*this},
      engine_{ram_, platform_, &host_code_} {}

Result<Exit> SoftPort::run() {
  VMM_TRY(complete_exit());
  for (;;) {
    if (is_stopped() || time_.take_due()) return Exit{Interrupted{}};
    if (auto exit = take_events()) return *exit;
    if (s_.halted) {
      const auto waited = time_.wait();
      if (!waited) return Exit{Hlt{}};
      s_.tsc += *waited;
      continue;
    }
    const Watch w = watch_of(s_, guest_debug_);
    const bool one = s_.events.interrupt.shadow != 0 || (s_.regs.rflags & rflags_rf) != 0;
    auto exit = w.any() ? run_watched(w) : run_some(one ? 1 : std::min({burst, time_.until_due(), stop_after_ - time_.ran()}));
    if (exit) return *exit;
  }
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

std::optional<Exit> SoftPort::take(Exception exception, EventKind kind) {
  if (exception.vector < 32 && exception.vector != vector_nmi) ++statistics_.exceptions;
  s_.halted = false;
  stale_ = true;
  pass_time(1);  // a guest whose handler faults at once must not keep us for ever
  if (deliver(s_, view_, exception, kind)) return std::nullopt;
  return Exit{Shutdown{}};
}

Stop SoftPort::run_engine(std::uint64_t instructions) {
  if (stale_) {
    engine_.load(engine_state(s_.regs, s_.sregs));
    ram_.close();
    stale_ = false;
  }
  entered_at_ = engine_.passed().instructions;
  const Stop stop = engine_.run(instructions);
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
  return stop == Stop::budget || stop == Stop::again ? std::nullopt : run_what_the_engine_left();
}

std::optional<Exit> SoftPort::run_what_the_engine_left() {
  std::array<std::byte, longest_instruction> bytes{};
  const std::size_t size = view_.fetch(vpmu::GuestLinear{s_.regs.rip}, bytes, cpl_of(s_.sregs));
  const auto code = std::span{bytes}.first(size);
  const auto i = decode_instruction(code, CodeSize::bits64);
  if (const auto system = decode_system(code)) {
    std::optional<std::uint64_t> operand;
    if (i && (i->load || i->store))
      operand = operand_address(i->store ? *i->store : *i->load, *i, vpmu::GuestLinear{s_.regs.rip}, s_.regs, s_.sregs).value();
    return run_system(*system, operand);
  }
  return run_into_fault(i, code);
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
  const SystemResult result = system_.run(i, operand);
  open_ = {.length = i.length};
  if (const auto* raised = std::get_if<Raised>(&result)) {
    s_.regs.rflags |= raised->kind == EventKind::fault ? rf : 0;
    return take(raised->exception, raised->kind);
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

std::vector<Access> SoftPort::accesses(const Instruction& i) const {
  std::vector<Access> all;
  const auto add = [&](const std::optional<MemoryOperand>& m, bool write) {
    if (!m) return;
    const auto at = operand_address(*m, i, vpmu::GuestLinear{s_.regs.rip}, s_.regs, s_.sregs);
    all.push_back({.at = at.value(), .bytes = std::max<std::uint8_t>(m->bytes, 1), .write = write});
  };
  add(i.load, false);
  add(i.store, true);
  return all;
}

// The engine stops before what faults and does not say why: look for the reasons in the order of SDM 3A table 6-2.
std::optional<Exit> SoftPort::run_into_fault(const std::optional<Instruction>& i, std::span<const std::byte> code) {
  if (!i) {
    if (code.size() < longest_instruction) return take(fetch_fault(s_.regs.rip + code.size()), EventKind::fault);
    return take({.vector = vector_ud, .error_code = std::nullopt}, EventKind::fault);
  }
  for (const Access& access : accesses(*i)) {
    if (!vpmu::is_canonical(access.at, 48)) return take(general_protection, EventKind::fault);
    const auto kind = access.write ? vpmu::AccessKind::write : vpmu::AccessKind::read;
    const auto fault = view_.probe_current(vpmu::GuestLinear{access.at}, access.bytes, kind);
    if (!fault) continue;
    if (fault->not_memory) return access_device(access);
    return take(page_fault(s_, *fault), EventKind::fault);
  }
  if (is_division(code)) return take({.vector = vector_de, .error_code = std::nullopt}, EventKind::fault);
  if (i->branch != vpmu::BranchKind::none) return take(general_protection, EventKind::fault);
  return Exit{InternalError{.suberror = KVM_INTERNAL_ERROR_EMULATION, .data = {s_.regs.rip}}};
}

Exception SoftPort::fetch_fault(std::uint64_t at) {
  const auto privilege = cpl_of(s_.sregs) == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  const vpmu::Walk walk = vpmu::translate(paging_state(s_.sregs, s_.regs), memory_->physical(), vpmu::GuestLinear{at}, vpmu::PagingAccess::execute,
                                          privilege, vpmu::AccessedDirty::leave);
  const auto* fault = std::get_if<vpmu::PageFault>(&walk);
  if (fault == nullptr) return general_protection;
  return page_fault(s_, {.address = vpmu::GuestLinear{at}, .error_code = fault->error_code});
}

// The engine runs the instruction on a page that stands for the device's.
std::optional<Exit> SoftPort::access_device(const Access& access) {
  const auto privilege = cpl_of(s_.sregs) == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  const auto kind = access.write ? vpmu::PagingAccess::write : vpmu::PagingAccess::read;
  const vpmu::Walk walk = vpmu::translate(paging_state(s_.sregs, s_.regs), memory_->physical(), vpmu::GuestLinear{access.at}, kind, privilege,
                                          vpmu::AccessedDirty::leave);
  const auto* mapped = std::get_if<vpmu::Mapped>(&walk);
  constexpr std::uint64_t apic_base_address = 0xF'FFFF'F000;
  const bool is_apic = mapped != nullptr && page_of(mapped->address).value() == (s_.sregs.apic_base & apic_base_address);
  const auto offset = static_cast<std::uint32_t>(access.at % vpmu::page_size);
  ram_.scratch.fill(std::byte{0xFF});
  const std::uint32_t before = is_apic ? s_.apic.read(offset) : ~0U;
  if (offset + sizeof before <= ram_.scratch.size()) std::memcpy(ram_.scratch.data() + offset, &before, sizeof before);
  const std::uint64_t retired = statistics_.instructions;
  ram_.open = true;
  stale_ = true;
  run_engine(1);
  ram_.open = false;
  stale_ = true;
  ++statistics_.mmio;
  if (statistics_.instructions == retired) return Exit{InternalError{.suberror = KVM_INTERNAL_ERROR_EMULATION, .data = {s_.regs.rip}}};
  if (!is_apic || !access.write) return std::nullopt;
  std::uint32_t after{};
  if (offset + sizeof after <= ram_.scratch.size()) std::memcpy(&after, ram_.scratch.data() + offset, sizeof after);
  s_.apic.write(offset, after);
  return std::nullopt;
}

std::optional<Exit> SoftPort::run_watched(const Watch& w) {
  if ((s_.regs.rflags & rflags_rf) == 0)
    if (const std::uint64_t hits = execution_hits(w, s_.regs.rip); hits != 0) return debug_hit(w, hits, EventKind::fault);
  std::array<std::byte, longest_instruction> bytes{};
  const std::size_t size = view_.fetch(vpmu::GuestLinear{s_.regs.rip}, bytes, cpl_of(s_.sregs));
  const auto i = decode_instruction(std::span{bytes}.first(size), CodeSize::bits64);
  const auto touched = i ? accesses(*i) : std::vector<Access>{};
  const std::uint64_t before = statistics_.instructions;
  if (auto exit = run_some(1)) {
    open_.trap = w.step && !w.to_host;
    return exit;
  }
  if (statistics_.instructions == before) return std::nullopt;
  std::uint64_t hits = data_hits(w, touched);
  if (w.step) hits |= dr6_bs;
  return hits == 0 ? std::nullopt : debug_hit(w, hits, EventKind::trap);
}

std::optional<Exit> SoftPort::debug_hit(const Watch& w, std::uint64_t hits, EventKind kind) {
  if (w.to_host) return Exit{Debug{.exception = vector_db, .pc = s_.regs.rip, .dr6 = dr6_fixed | hits, .dr7 = w.dr7}};
  s_.debug.dr6 |= hits;
  return take({.vector = vector_db, .error_code = std::nullopt}, kind);
}

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
  if (index == msr_tsc) return s_.tsc;
  const auto found = s_.msrs.find(index);
  return found == s_.msrs.end() ? 0 : found->second;
}

Result<void> SoftPort::set_msr(std::uint32_t index, std::uint64_t value) {
  if (index != msr_tsc) return host_error("no such MSR in a vCPU without KVM");
  s_.tsc = value;
  return {};
}

Result<void> SoftPort::set_lapic(const kvm_lapic_state& state) {
  s_.apic.set_page(state);
  return {};
}

Result<void> SoftPort::nmi() {
  constexpr std::uint8_t most = 2;
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
  visit("soft.decoded_blocks", engine_.decoded_blocks());
}

}  // namespace vmm
