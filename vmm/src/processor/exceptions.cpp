#include "processor/exceptions.hpp"

#include <array>

#include "processor/descriptors.hpp"
#include "processor/far_transfer.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t in_idt = 2, external = 1;
constexpr unsigned type_interrupt_gate = 14, type_trap_gate = 15;

/// A gate of the IDT. SDM 3A figure 6-7.
struct Gate {
  std::uint64_t low{}, high{};
  [[nodiscard]] std::uint64_t offset() const { return (low & 0xFFFF) | (low >> 48 << 16) | (high << 32); }
  [[nodiscard]] std::uint16_t selector() const { return static_cast<std::uint16_t>(low >> 16); }
  [[nodiscard]] unsigned stack() const { return static_cast<unsigned>(vpmu::Bits<34, 32>::get(low)); }
  [[nodiscard]] unsigned type() const { return static_cast<unsigned>(vpmu::Bits<43, 40>::get(low)); }
  [[nodiscard]] unsigned dpl() const { return static_cast<unsigned>(vpmu::Bits<46, 45>::get(low)); }
  [[nodiscard]] bool present() const { return vpmu::Bits<47>::test(low); }
};

/// Reads as the processor reads its tables.
template <class T>
vpmu::AccessResult read(GuestView& view, std::uint64_t at, T& out) {
  return view.read(vpmu::GuestLinear{at}, std::as_writable_bytes(std::span{&out, 1}));
}
/// EXT of an error code: 0 if a program caused the event, by INT n, INT3 or INTO. SDM 3A 6.13.
std::uint32_t external_bit(EventKind kind) { return kind == EventKind::software ? 0 : external; }
/// The error code of an exception that a gate causes.
std::uint32_t gate_error_of(const Exception& e, EventKind kind) {
  return (std::uint32_t{e.vector} << 3) | in_idt | external_bit(kind);
}

/// Loads the handler's code segment; its level is the new CPL. SDM 2A INT n.
std::optional<Exception> handler_code(SoftState& state, GuestView& view, std::uint16_t selector, std::uint32_t ext,
                                      kvm_segment& out) {
  Descriptor d;
  if (const auto fault = fetch_descriptor(state, view, selector, d, x86::vector::GP, ext)) return fault;
  const kvm_segment& s = d.segment;
  const unsigned cpl = cpl_of(state.sregs);
  const bool is_64_bit = s.l != 0 && s.db == 0;
  if (!is_code(s) || s.dpl > cpl || (is_long_mode(state.sregs) && !is_64_bit))
    return about(x86::vector::GP, selector, ext);
  if (s.present == 0) return about(x86::vector::NP, selector, ext);
  if (const auto fault = mark_accessed(state, view, d)) return fault;
  out = d.segment;
  if (!is_long_mode(state.sregs)) out.l = 0;
  const unsigned level = is_conforming(out) ? cpl : out.dpl;
  out.selector = static_cast<std::uint16_t>((selector & ~3U) | level);
  return std::nullopt;
}
unsigned level_of(const kvm_segment& code) { return code.selector & 3U; }

/// Reads a field of the task state segment, which must have it.
template <class T>
std::optional<Exception> read_task(SoftState& state, GuestView& view, std::uint32_t at, std::uint32_t ext, T& out) {
  const kvm_segment& task = state.sregs.tr;
  if (at + sizeof out - 1 > task.limit) return about(x86::vector::TS, task.selector, ext);
  if (const auto fault = read(view, task.base + at, out)) return page_fault(state, *fault);
  return std::nullopt;
}

/// The stack that a handler of 64-bit code runs on. SDM 3A 6.14.4, 6.14.5, figure 7-11.
std::optional<Exception> handler_stack(SoftState& state, GuestView& view, const Gate& gate, unsigned cpl,
                                       std::uint32_t ext, std::uint64_t& out) {
  constexpr std::uint32_t rsp_at = 4, ist_at = 36;
  out = state.regs.rsp;
  if (gate.stack() == 0 && cpl == cpl_of(state.sregs)) return std::nullopt;
  const std::uint32_t at = gate.stack() != 0 ? ist_at + 8 * (gate.stack() - 1) : rsp_at + 8 * cpl;
  return read_task(state, view, at, ext, out);
}

/// Enters a handler through a 4-byte entry at IDTR's base. SDM 3B 20.1.4.
std::optional<Exception> enter_in_real_mode(SoftState& state, GuestView& view, const Exception& e) {
  std::array<std::uint16_t, 2> gate{};  // IP, CS
  if (state.sregs.idt.limit < e.vector * 4U + 3U) return Exception{x86::vector::GP, std::nullopt};
  if (read(view, state.sregs.idt.base + e.vector * 4ULL, gate)) return Exception{x86::vector::GP, std::nullopt};
  kvm_regs& r = state.regs;
  const std::array<std::uint16_t, 3> frame{static_cast<std::uint16_t>(r.rip), state.sregs.cs.selector,
                                           static_cast<std::uint16_t>(r.rflags)};
  const std::uint64_t to = r.rsp - sizeof frame;
  if (view.write(stack_address(state.sregs, to), std::as_bytes(std::span{frame})))
    return Exception{x86::vector::SS, std::nullopt};
  set_stack_pointer(state, to);
  state.sregs.cs = real_mode_segment(gate[1], true);
  r.rip = gate[0];
  r.rflags &= ~(x86::rflags::TF::mask | x86::rflags::IF::mask | x86::rflags::RF::mask);
  return std::nullopt;
}

/// Whether an event may go through the gate at this CPL. SDM 3A 6.12.1.1.
std::optional<Exception> check(const Gate& gate, EventKind kind, unsigned cpl, std::uint32_t gate_error) {
  if (gate.type() != type_interrupt_gate && gate.type() != type_trap_gate)
    return Exception{x86::vector::GP, gate_error};
  if (kind == EventKind::software && gate.dpl() < cpl) return Exception{x86::vector::GP, gate_error};
  if (!gate.present()) return Exception{x86::vector::NP, gate_error};
  return std::nullopt;
}

/// SDM 3A 6.12.1.2.
std::uint64_t flags_cleared_by(const Gate& gate) {
  const std::uint64_t always =
      x86::rflags::TF::mask | x86::rflags::NT::mask | x86::rflags::RF::mask | x86::rflags::VM::mask;
  return always | (gate.type() == type_interrupt_gate ? x86::rflags::IF::mask : 0);
}

/// The stack of an inner privilege level, from a 32-bit TSS. SDM 3A figure 7-2.
struct InnerStack {
  std::uint64_t rsp{};
  kvm_segment ss{};
};
std::optional<Exception> inner_stack(SoftState& state, GuestView& view, unsigned cpl, std::uint32_t ext,
                                     InnerStack& out) {
  std::array<std::uint32_t, 2> words{};  // ESP, SS
  if (const auto fault = read_task(state, view, 4 + 8 * cpl, ext, words)) return fault;
  out.rsp = words[0];
  return stack_segment(state, view, static_cast<std::uint16_t>(words[1]), cpl, out.ss, x86::vector::TS, ext);
}

/// Enters 32-bit code through an 8-byte gate. SDM 3A 6.12.1. 16-bit gates and task gates are not supported.
std::optional<Exception> enter_in_protected_mode(SoftState& state, GuestView& view, const Exception& e,
                                                 EventKind kind) {
  const std::uint32_t gate_error = gate_error_of(e, kind), ext = external_bit(kind);
  std::uint64_t gate{};
  if (state.sregs.idt.limit < e.vector * 8U + 7U) return Exception{x86::vector::GP, gate_error};
  if (const auto fault = read(view, state.sregs.idt.base + e.vector * 8ULL, gate)) return page_fault(state, *fault);
  const Gate g{.low = gate};
  const unsigned before = cpl_of(state.sregs);
  if (const auto fault = check(g, kind, before, gate_error)) return fault;
  kvm_segment cs;
  if (const auto fault = handler_code(state, view, g.selector(), ext, cs)) return fault;
  const bool goes_in = level_of(cs) != before;
  const kvm_regs& r = state.regs;
  InnerStack stack{.rsp = r.rsp, .ss = state.sregs.ss};
  if (goes_in)
    if (const auto fault = inner_stack(state, view, level_of(cs), ext, stack)) return fault;
  const std::array<std::uint32_t, 6> frame{
      e.error_code.value_or(0),
      static_cast<std::uint32_t>(r.rip),
      state.sregs.cs.selector,
      static_cast<std::uint32_t>(r.rflags | (kind == EventKind::fault ? x86::rflags::RF::mask : 0)),
      static_cast<std::uint32_t>(r.rsp),
      state.sregs.ss.selector};
  const auto pushed =
      std::as_bytes(std::span{frame}.subspan(e.error_code ? 0 : 1, (e.error_code ? 4 : 3) + (goes_in ? 2 : 0)));
  kvm_sregs on_stack = state.sregs;
  on_stack.ss = stack.ss;
  const std::uint64_t to = stack.rsp - pushed.size(), target = g.offset() & vpmu::low_bits(32);
  if (const auto fault = view.write(stack_address(on_stack, to), pushed)) return page_fault(state, *fault);
  if (target > cs.limit) return Exception{x86::vector::GP, ext};
  state.sregs.ss = stack.ss;
  state.sregs.cs = cs;
  set_stack_pointer(state, to);
  state.regs.rip = target;
  state.regs.rflags &= ~flags_cleared_by(g);
  return std::nullopt;
}

std::optional<Exception> enter_64_bit_code(SoftState& state, GuestView& view, const Exception& e, EventKind kind) {
  const std::uint32_t gate_error = gate_error_of(e, kind), ext = external_bit(kind);
  Gate gate;
  if (state.sregs.idt.limit < e.vector * 16U + 15U) return Exception{x86::vector::GP, gate_error};
  if (const auto fault = read(view, state.sregs.idt.base + e.vector * 16ULL, gate)) return page_fault(state, *fault);
  if (const auto fault = check(gate, kind, cpl_of(state.sregs), gate_error)) return fault;
  kvm_segment cs;
  if (const auto fault = handler_code(state, view, gate.selector(), ext, cs)) return fault;
  std::uint64_t stack{};
  if (const auto fault = handler_stack(state, view, gate, level_of(cs), ext, stack)) return fault;
  const kvm_regs& r = state.regs;
  const std::array<std::uint64_t, 6> frame{e.error_code.value_or(0),
                                           r.rip,
                                           state.sregs.cs.selector,
                                           r.rflags | (kind == EventKind::fault ? x86::rflags::RF::mask : 0),
                                           r.rsp,
                                           state.sregs.ss.selector};
  const auto pushed = std::as_bytes(std::span{frame}.subspan(e.error_code ? 0 : 1));
  const std::uint64_t rsp = (stack & ~15ULL) - pushed.size();
  if (!vpmu::is_canonical(rsp, 48)) return Exception{x86::vector::SS, ext};
  if (const auto fault = view.write(vpmu::GuestLinear{rsp}, pushed)) return page_fault(state, *fault);
  if (!vpmu::is_canonical(gate.offset(), 48)) return Exception{x86::vector::GP, ext};
  const unsigned cpl = level_of(cs);
  if (cpl != cpl_of(state.sregs)) state.sregs.ss = null_stack(static_cast<std::uint16_t>(cpl), cpl);
  state.sregs.cs = cs;
  state.regs.rip = gate.offset();
  state.regs.rsp = rsp;
  state.regs.rflags &= ~flags_cleared_by(gate);
  return std::nullopt;
}

std::optional<Exception> enter(SoftState& state, GuestView& view, const Exception& e, EventKind kind) {
  if (is_real_mode(state.sregs)) return enter_in_real_mode(state, view, e);
  return is_long_mode(state.sregs) ? enter_64_bit_code(state, view, e, kind)
                                   : enter_in_protected_mode(state, view, e, kind);
}

// SDM 3A table 6-5.
bool makes_double_fault(const Exception& first, EventKind kind, const Exception& second) {
  const auto contributes = [](const Exception& e) {
    return e.vector == x86::vector::DE || (e.vector >= x86::vector::TS && e.vector <= x86::vector::GP);
  };
  if (kind != EventKind::fault) return false;
  return (contributes(first) && contributes(second)) ||
         (first.vector == x86::vector::PF && (contributes(second) || second.vector == x86::vector::PF));
}

}  // namespace

bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind, std::uint8_t length) {
  // Terminates: a fault after a page fault can only become #DF, and a fault after #DF ends the loop.
  while (const auto second = enter(state, view, exception, kind)) {
    if (exception.vector == x86::vector::DF) return false;
    if (kind == EventKind::software) state.regs.rip -= length;
    exception = makes_double_fault(exception, kind, *second) ? Exception{x86::vector::DF, 0} : *second;
    kind = EventKind::fault;
  }
  state.events.interrupt.shadow = 0;  // SDM 3A 6.8.3: an event ends it
  if (exception.vector == x86::vector::DB && kind != EventKind::software) state.debug.dr7 &= ~x86::dr7::GD::mask;
  return true;
}

Exception page_fault(SoftState& state, const vpmu::AccessFault& fault) {
  if (!vpmu::is_canonical(fault.address.value(), 48)) return general_protection;
  state.sregs.cr2 = fault.address.value();
  return {.vector = x86::vector::PF, .error_code = fault.error_code};
}

Exception stack_exception(SoftState& state, const vpmu::AccessFault& fault) {
  return vpmu::is_canonical(fault.address.value(), 48) ? page_fault(state, fault) : stack_fault;
}

}  // namespace vmm
