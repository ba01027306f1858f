#include "soft/exceptions.hpp"

#include <array>

#include "vcpu/segments.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t rflags_tf = vpmu::bit(8), rflags_if = vpmu::bit(9), rflags_nt = vpmu::bit(14),
                        rflags_rf = vpmu::bit(16), rflags_vm = vpmu::bit(17), rflags_iopl = 3ULL << 12,
                        rflags_fixed = vpmu::bit(1);
/// All that software may load into RFLAGS.
constexpr std::uint64_t rflags_loadable = 0x25'7FD5;
constexpr std::uint32_t in_idt = 2, external = 1;
constexpr unsigned type_interrupt_gate = 14, type_trap_gate = 15;
/// Descriptor types, accessed: readable code, writable data.
constexpr std::uint8_t type_code = 0xB, type_data = 0x3;

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

/// As the processor looks at its tables.
template <class T>
vpmu::AccessResult read(GuestView& view, std::uint64_t at, T& out) {
  return view.read(vpmu::GuestLinear{at}, std::as_writable_bytes(std::span{&out, 1}));
}
/// From the stack, as the instruction may.
template <class T>
vpmu::AccessResult pop(GuestView& view, std::uint64_t at, T& out) {
  return view.read_current(vpmu::GuestLinear{at}, std::as_writable_bytes(std::span{&out, 1}));
}

bool is_code64(const kvm_segment& s) {
  return s.s != 0 && s.present != 0 && (s.type & 8) != 0 && s.l != 0 && s.db == 0;
}
bool is_writable_data(const kvm_segment& s) { return s.s != 0 && s.present != 0 && (s.type & 0xA) == 2; }

/// The null selector in SS, as 64-bit code has it in ring 0.
kvm_segment null_stack(std::uint16_t selector, unsigned cpl) {
  kvm_segment s{};
  s.selector = selector;
  s.type = 3;
  s.s = 1;
  s.dpl = static_cast<std::uint8_t>(cpl);
  s.present = 1;
  return s;
}

struct TaskStacks {
  std::uint32_t reserved0;
  std::array<std::uint32_t, 6> rsp;  ///< Three words of 8 bytes, not aligned to them.
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

std::optional<Exception> enter(SoftState& state, GuestView& view, Exception e, EventKind kind) {
  const std::uint32_t source = kind == EventKind::trap ? external : 0;
  const std::uint32_t gate_error = (std::uint32_t{e.vector} << 3) | in_idt | (kind == EventKind::software ? 0 : source);
  Gate gate;
  if (state.sregs.idt.limit < e.vector * 16U + 15U) return Exception{vector_gp, gate_error};
  if (const auto fault = read(view, state.sregs.idt.base + e.vector * 16ULL, gate)) return page_fault(state, *fault);
  if (gate.type() != type_interrupt_gate && gate.type() != type_trap_gate) return Exception{vector_gp, gate_error};
  if (kind == EventKind::software && gate.dpl() < cpl_of(state.sregs)) return Exception{vector_gp, gate_error};
  if (!gate.present()) return Exception{vector_np, gate_error};
  const std::uint32_t code_error = gate.selector() & ~3U;
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

}  // namespace

bool deliver(SoftState& state, GuestView& view, Exception exception, EventKind kind) {
  if (!enter(state, view, exception, kind)) return true;
  return exception.vector != vector_df && !enter(state, view, {vector_df, 0}, EventKind::trap);
}

std::optional<Exception> return_from_interrupt(SoftState& state, GuestView& view) {
  std::array<std::uint64_t, 5> frame{};  // RIP, CS, RFLAGS, RSP, SS
  if (const auto fault = pop(view, state.regs.rsp, frame)) return page_fault(state, *fault);
  const auto selector = static_cast<std::uint16_t>(frame[1]);
  const unsigned cpl = selector & 3U;
  auto cs = segment_of(view, state.sregs, selector);
  if (!cs || !is_code64(*cs) || cs->dpl != cpl || cpl < cpl_of(state.sregs))
    return Exception{vector_gp, selector & ~3U};
  const auto stack_selector = static_cast<std::uint16_t>(frame[4]);
  auto ss = (stack_selector & ~3U) == 0 && cpl != 3 ? null_stack(stack_selector, cpl)
                                                    : segment_of(view, state.sregs, stack_selector);
  if (!ss || !is_writable_data(*ss) || ss->dpl != cpl) return Exception{vector_gp, stack_selector & ~3U};
  if (!vpmu::is_canonical(frame[0], 48)) return general_protection;
  std::uint64_t loadable = rflags_loadable;
  if (cpl_of(state.sregs) != 0) loadable &= ~(rflags_iopl | rflags_if);
  state.sregs.cs = *cs;
  state.sregs.ss = *ss;
  state.regs.rip = frame[0];
  state.regs.rflags = (state.regs.rflags & ~loadable) | (frame[2] & loadable) | rflags_fixed;
  state.regs.rsp = frame[3];
  state.events.nmi.masked = 0;
  return std::nullopt;
}

std::optional<Exception> far_return(SoftState& state, GuestView& view) {
  std::array<std::uint64_t, 2> frame{};  // RIP, CS
  if (const auto fault = pop(view, state.regs.rsp, frame)) return page_fault(state, *fault);
  const auto selector = static_cast<std::uint16_t>(frame[1]);
  const auto cs = segment_of(view, state.sregs, selector);
  if (!cs || !is_code64(*cs) || cs->dpl != cpl_of(state.sregs)) return Exception{vector_gp, selector & ~3U};
  state.sregs.cs = *cs;
  state.regs.rip = frame[0];
  state.regs.rsp += sizeof frame;
  return std::nullopt;
}

namespace {

constexpr std::uint32_t msr_star = 0xC000'0081, msr_lstar = 0xC000'0082, msr_fmask = 0xC000'0084;

/// As SYSCALL and SYSRET load it, whatever the descriptor table says.
kvm_segment flat(std::uint64_t selector, std::uint8_t type, std::uint8_t dpl) {
  kvm_segment s{};
  s.selector = static_cast<std::uint16_t>(selector);
  s.limit = 0xFFFF'FFFF;
  s.type = type;
  s.present = s.s = s.g = 1;
  s.dpl = dpl;
  (type == type_code ? s.l : s.db) = 1;
  return s;
}

}  // namespace

void system_call(SoftState& state, std::uint64_t next) {
  const std::uint64_t star = state.msrs[msr_star];
  kvm_regs& r = state.regs;
  r.rcx = next;
  r.r11 = r.rflags & ~rflags_rf;
  r.rip = state.msrs[msr_lstar];
  r.rflags = ((r.rflags & ~state.msrs[msr_fmask]) | rflags_fixed) & ~rflags_rf;
  state.sregs.cs = flat(star >> 32 & 0xFFFC, type_code, 0);
  state.sregs.ss = flat((star >> 32) + 8, type_data, 0);
}

std::optional<Exception> system_return(SoftState& state) {
  constexpr std::uint64_t loaded = 0x3C'7FD7;
  const std::uint64_t star = state.msrs[msr_star];
  kvm_regs& r = state.regs;
  if (!vpmu::is_canonical(r.rcx, 48)) return general_protection;
  r.rip = r.rcx;
  r.rflags = (r.r11 & loaded) | rflags_fixed;
  state.sregs.cs = flat(((star >> 48) + 16) | 3, type_code, 3);
  state.sregs.ss = flat(((star >> 48) + 8) | 3, type_data, 3);
  return std::nullopt;
}

Exception page_fault(SoftState& state, const vpmu::AccessFault& fault) {
  if (!vpmu::is_canonical(fault.address.value(), 48)) return general_protection;
  state.sregs.cr2 = fault.address.value();
  return {.vector = vector_pf, .error_code = fault.error_code};
}

}  // namespace vmm
