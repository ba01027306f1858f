#include "processor/exceptions.hpp"

#include <array>

#include "processor/far_transfer.hpp"
#include "vcpu/segments.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t rflags_tf = vpmu::bit(8), rflags_if = vpmu::bit(9), rflags_nt = vpmu::bit(14),
                        rflags_rf = vpmu::bit(16), rflags_vm = vpmu::bit(17);
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
bool is_code64(const kvm_segment& s) {
  return s.s != 0 && s.present != 0 && (s.type & 8) != 0 && s.l != 0 && s.db == 0;
}

struct TaskStacks {
  std::uint32_t reserved0;
  std::array<std::uint32_t, 6> rsp;  ///< Three words of 8 bytes, not aligned to 8.
  std::array<std::uint32_t, 2> reserved1;
  std::array<std::uint32_t, 14> ist;
};

/// The stack that a handler runs on. SDM 3A 6.14.4, 6.14.5, figure 7-11.
std::optional<std::uint64_t> handler_stack(const SoftState& state, GuestView& view, const Gate& gate, unsigned cpl) {
  if (gate.stack() == 0 && cpl == cpl_of(state.sregs)) return state.regs.rsp;
  TaskStacks tss{};
  if (read(view, state.sregs.tr.base, tss)) return std::nullopt;
  const auto word = [](const auto& words, unsigned i) { return words[2 * i] | std::uint64_t{words[2 * i + 1]} << 32; };
  return gate.stack() != 0 ? word(tss.ist, gate.stack() - 1) : word(tss.rsp, cpl);
}

/// EXT of an error code: 0 if a program caused the event, by INT n, INT3 or INTO. SDM 3A 6.13.
std::uint32_t external_bit(EventKind kind) { return kind == EventKind::software ? 0 : external; }
/// The error code of an exception that a gate causes.
std::uint32_t gate_error_of(const Exception& e, EventKind kind) {
  return (std::uint32_t{e.vector} << 3) | in_idt | external_bit(kind);
}

/// Enters a handler through a 4-byte entry at IDTR's base. SDM 3B 20.1.4.
std::optional<Exception> enter_in_real_mode(SoftState& state, GuestView& view, const Exception& e) {
  std::array<std::uint16_t, 2> gate{};  // IP, CS
  if (state.sregs.idt.limit < e.vector * 4U + 3U) return Exception{vector_gp, std::nullopt};
  if (read(view, state.sregs.idt.base + e.vector * 4ULL, gate)) return Exception{vector_gp, std::nullopt};
  kvm_regs& r = state.regs;
  const std::array<std::uint16_t, 3> frame{static_cast<std::uint16_t>(r.rip), state.sregs.cs.selector,
                                           static_cast<std::uint16_t>(r.rflags)};
  const std::uint64_t to = r.rsp - sizeof frame;
  if (view.write(stack_address(state.sregs, to), std::as_bytes(std::span{frame})))
    return Exception{vector_ss, std::nullopt};
  set_stack_pointer(state, to);
  state.sregs.cs = real_mode_segment(gate[1], true);
  r.rip = gate[0];
  r.rflags &= ~(rflags_tf | rflags_if | rflags_rf);
  return std::nullopt;
}

/// The stack of an inner privilege level, from a 32-bit TSS. SDM 3A figure 7-2.
struct InnerStack {
  std::uint64_t rsp{};
  kvm_segment ss{};
};
std::optional<InnerStack> inner_stack(const SoftState& state, GuestView& view, unsigned cpl) {
  std::array<std::uint32_t, 2> words{};  // ESP, SS
  if (read(view, state.sregs.tr.base + 4 + 8ULL * cpl, words)) return std::nullopt;
  const auto ss = segment_of(view, state.sregs, static_cast<std::uint16_t>(words[1]));
  const bool writable = ss && ss->s != 0 && ss->present != 0 && (ss->type & 0xA) == 2 && ss->dpl == cpl;
  return writable ? std::optional{InnerStack{words[0], *ss}} : std::nullopt;
}

/// Enters 32-bit code through an 8-byte gate. SDM 3A 6.12.1. 16-bit gates and task gates are not supported.
std::optional<Exception> enter_in_protected_mode(SoftState& state, GuestView& view, const Exception& e,
                                                 EventKind kind) {
  const std::uint32_t gate_error = gate_error_of(e, kind);
  std::uint64_t gate{};
  if (state.sregs.idt.limit < e.vector * 8U + 7U) return Exception{vector_gp, gate_error};
  if (const auto fault = read(view, state.sregs.idt.base + e.vector * 8ULL, gate)) return page_fault(state, *fault);
  const Gate g{.low = gate};
  if (g.type() != type_interrupt_gate && g.type() != type_trap_gate) return Exception{vector_gp, gate_error};
  const unsigned before = cpl_of(state.sregs);
  if (kind == EventKind::software && g.dpl() < before) return Exception{vector_gp, gate_error};
  if (!g.present()) return Exception{vector_np, gate_error};
  auto cs = segment_of(view, state.sregs, g.selector());
  const bool is_code = cs && cs->s != 0 && cs->present != 0 && (cs->type & 8) != 0;
  if (!is_code || cs->dpl > before) return Exception{vector_gp, (g.selector() & ~3U) | external_bit(kind)};
  const unsigned cpl = cs->dpl;
  const kvm_regs& r = state.regs;
  const auto inner = cpl == before ? std::nullopt : inner_stack(state, view, cpl);
  if (cpl != before && !inner) return Exception{vector_ts, state.sregs.tr.selector | external_bit(kind)};
  const std::array<std::uint32_t, 6> frame{
      e.error_code.value_or(0),
      static_cast<std::uint32_t>(r.rip),
      state.sregs.cs.selector,
      static_cast<std::uint32_t>(r.rflags | (kind == EventKind::fault ? rflags_rf : 0)),
      static_cast<std::uint32_t>(r.rsp),
      state.sregs.ss.selector};
  const auto pushed =
      std::as_bytes(std::span{frame}.subspan(e.error_code ? 0 : 1, (e.error_code ? 4 : 3) + (inner ? 2 : 0)));
  kvm_sregs on_stack = state.sregs;
  if (inner) on_stack.ss = inner->ss;
  const std::uint64_t to = (inner ? inner->rsp : r.rsp) - pushed.size();
  if (const auto fault = view.write(stack_address(on_stack, to), pushed)) return page_fault(state, *fault);
  cs->selector = static_cast<std::uint16_t>((cs->selector & ~3U) | cpl);
  cs->l = 0;
  state.sregs.ss = on_stack.ss;
  state.sregs.cs = *cs;
  set_stack_pointer(state, to);
  state.regs.rip = g.offset() & vpmu::low_bits(32);
  state.regs.rflags &=
      ~(rflags_tf | rflags_nt | rflags_rf | rflags_vm | (g.type() == type_interrupt_gate ? rflags_if : 0));
  return std::nullopt;
}

std::optional<Exception> enter_64_bit_code(SoftState& state, GuestView& view, const Exception& e, EventKind kind) {
  const std::uint32_t gate_error = gate_error_of(e, kind);
  Gate gate;
  if (state.sregs.idt.limit < e.vector * 16U + 15U) return Exception{vector_gp, gate_error};
  if (const auto fault = read(view, state.sregs.idt.base + e.vector * 16ULL, gate)) return page_fault(state, *fault);
  if (gate.type() != type_interrupt_gate && gate.type() != type_trap_gate) return Exception{vector_gp, gate_error};
  if (kind == EventKind::software && gate.dpl() < cpl_of(state.sregs)) return Exception{vector_gp, gate_error};
  if (!gate.present()) return Exception{vector_np, gate_error};
  const std::uint32_t code_error = (gate.selector() & ~3U) | external_bit(kind);
  auto cs = segment_of(view, state.sregs, gate.selector());
  if (!cs || !is_code64(*cs) || cs->dpl > cpl_of(state.sregs)) return Exception{vector_gp, code_error};
  const unsigned cpl = cs->dpl;
  const auto stack = handler_stack(state, view, gate, cpl);
  if (!stack) return Exception{vector_df, 0};
  const kvm_regs& r = state.regs;
  const std::array<std::uint64_t, 6> frame{e.error_code.value_or(0),
                                           r.rip,
                                           state.sregs.cs.selector,
                                           r.rflags | (kind == EventKind::fault ? rflags_rf : 0),
                                           r.rsp,
                                           state.sregs.ss.selector};
  const auto pushed = std::as_bytes(std::span{frame}.subspan(e.error_code ? 0 : 1));
  const std::uint64_t rsp = (*stack & ~15ULL) - pushed.size();
  if (const auto fault = view.write(vpmu::GuestLinear{rsp}, pushed)) return page_fault(state, *fault);
  if (cpl != cpl_of(state.sregs)) state.sregs.ss = null_stack(static_cast<std::uint16_t>(cpl), cpl);
  cs->selector = static_cast<std::uint16_t>((cs->selector & ~3U) | cpl);
  state.sregs.cs = *cs;
  state.regs.rip = gate.offset();
  state.regs.rsp = rsp;
  state.regs.rflags &=
      ~(rflags_tf | rflags_nt | rflags_rf | rflags_vm | (gate.type() == type_interrupt_gate ? rflags_if : 0));
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
    return e.vector == vector_de || (e.vector >= vector_ts && e.vector <= vector_gp);
  };
  if (kind != EventKind::fault) return false;
  return (contributes(first) && contributes(second)) ||
         (first.vector == vector_pf && (contributes(second) || second.vector == vector_pf));
}

}  // namespace

bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind, std::uint8_t length) {
  // Terminates: a fault after a page fault can only become #DF, and a fault after #DF ends the loop.
  while (const auto second = enter(state, view, exception, kind)) {
    if (exception.vector == vector_df) return false;
    if (kind == EventKind::software) state.regs.rip -= length;
    exception = makes_double_fault(exception, kind, *second) ? Exception{vector_df, 0} : *second;
    kind = EventKind::fault;
  }
  if (exception.vector == vector_db && kind != EventKind::software) state.debug.dr7 &= ~dr7_gd;
  return true;
}

Exception page_fault(SoftState& state, const vpmu::AccessFault& fault) {
  if (!vpmu::is_canonical(fault.address.value(), 48)) return general_protection;
  state.sregs.cr2 = fault.address.value();
  return {.vector = vector_pf, .error_code = fault.error_code};
}

}  // namespace vmm
