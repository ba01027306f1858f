#include "processor/far_transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "decode/instruction.hpp"
#include "processor/descriptors.hpp"
#include "processor/exceptions.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// All flags that IRET and SYSRET may load.
constexpr std::uint64_t by_iret = x86::rflags::by_popf | x86::rflags::RF::mask;
/// Descriptor types, accessed: readable code, writable data.
constexpr std::uint8_t type_code = 0xB, type_data = 0x3;

/// Reads words of the stack, from `offset` above its top, as the instruction would.
template <std::size_t N>
std::optional<Exception> read_frame(SoftState& state, GuestView& view, std::uint64_t offset, std::size_t bytes,
                                    std::array<std::uint64_t, N>& words) {
  for (std::size_t n = 0; n < words.size(); ++n) {
    const auto at = stack_address(state.sregs, state.regs.rsp + offset + n * bytes);
    if (const auto fault = view.read_current(at, std::as_writable_bytes(std::span{&words[n], 1}).first(bytes)))
      return stack_exception(state, *fault);
  }
  return std::nullopt;
}

/// Where CS and RIP of a far transfer come from: they determine the privilege checks. SDM 2A JMP, CALL, IRET, 2B RET.
enum class Transfer : std::uint8_t { branch, back };

bool may_transfer(const SoftState& state, Transfer how, const kvm_segment& cs, unsigned rpl) {
  const unsigned cpl = cpl_of(state.sregs);
  if (!is_code(cs) || (is_long_mode(state.sregs) && cs.l != 0 && cs.db != 0)) return false;
  if (how == Transfer::back) return rpl >= cpl && (is_conforming(cs) ? cs.dpl <= rpl : cs.dpl == rpl);
  return is_conforming(cs) ? cs.dpl <= cpl : rpl <= cpl && cs.dpl == cpl;
}

/// Loads the code segment of a far transfer. Call gates and tasks are not supported.
std::optional<Exception> code_segment(SoftState& state, GuestView& view, std::uint16_t selector, Transfer how,
                                      kvm_segment& out) {
  if (is_real_mode(state.sregs)) {
    out = real_mode_segment(selector, true);
    return std::nullopt;
  }
  Descriptor d;
  if (const auto fault = fetch_descriptor(state, view, selector, d)) return fault;
  const unsigned rpl = selector & 3U;
  if (!may_transfer(state, how, d.segment, rpl)) return about(x86::vector::GP, selector);
  if (d.segment.present == 0) return about(x86::vector::NP, selector);
  if (const auto fault = mark_accessed(state, view, d)) return fault;
  out = d.segment;
  if (!is_long_mode(state.sregs)) out.l = 0;
  out.selector = static_cast<std::uint16_t>((selector & ~3U) | (how == Transfer::back ? rpl : cpl_of(state.sregs)));
  return std::nullopt;
}

/// Loads SS of a return to level `cpl` of `cs`. 64-bit code of the inner levels may have a null one.
std::optional<Exception> outer_stack(SoftState& state, GuestView& view, std::uint16_t selector, unsigned cpl,
                                     const kvm_segment& cs, kvm_segment& out) {
  if ((selector & ~3U) != 0) return stack_segment(state, view, selector, cpl, out);
  if (!is_long_mode(state.sregs) || cs.l == 0 || cpl == 3) return general_protection;
  out = null_stack(selector, cpl);
  return std::nullopt;
}

/// A program gets no segment registers of its kernel: SDM 3A 5.8.6, 2A IRET. A null selector loses its RPL.
void drop_inner_segments(kvm_sregs& s, unsigned cpl) {
  for (kvm_segment* const to : {&s.es, &s.ds, &s.fs, &s.gs}) {
    const bool is_null = (to->selector & ~3U) == 0;
    if (is_null) to->selector = 0;
    if (is_null || to->unusable != 0 || to->dpl >= cpl || is_conforming(*to)) continue;
    to->selector = 0;
    to->unusable = 1;
  }
}

std::optional<Exception> bad_target(const SoftState& state, const kvm_segment& cs, std::uint64_t& offset) {
  if (is_long_mode(state.sregs) && cs.l != 0)
    return vpmu::is_canonical(offset, 48) ? std::nullopt : std::optional{general_protection};
  offset &= vpmu::low_bits(32);
  return offset <= cs.limit ? std::nullopt : std::optional{general_protection};
}

/// A segment as the fast system calls load it, regardless of the descriptor table.
kvm_segment flat(std::uint64_t selector, std::uint8_t type, std::uint8_t dpl, bool is_64_bit = true) {
  kvm_segment s{};
  s.selector = static_cast<std::uint16_t>(selector);
  s.limit = 0xFFFF'FFFF;
  s.type = type;
  s.present = s.s = s.g = 1;
  s.dpl = dpl;
  (type == type_code && is_64_bit ? s.l : s.db) = 1;
  return s;
}

}  // namespace

bool is_real_mode(const kvm_sregs& sregs) { return !x86::cr0::PE::test(sregs.cr0); }
bool is_long_mode(const kvm_sregs& sregs) { return x86::efer::LMA::test(sregs.efer); }
bool is_64_bit_code(const kvm_sregs& sregs) { return code_mode(sregs) == CodeMode::bits64; }

kvm_segment real_mode_segment(std::uint16_t selector, bool code) {
  kvm_segment s{};
  s.selector = selector;
  s.base = std::uint64_t{selector} << 4;
  s.limit = 0xFFFF;
  s.type = code ? type_code : type_data;
  s.s = s.present = 1;
  return s;
}

kvm_segment null_stack(std::uint16_t selector, unsigned cpl) {
  kvm_segment s{};
  s.selector = selector;
  s.type = type_data;
  s.s = 1;
  s.dpl = static_cast<std::uint8_t>(cpl);
  s.present = 1;
  return s;
}

vpmu::GuestLinear stack_address(const kvm_sregs& sregs, std::uint64_t at) {
  if (is_64_bit_code(sregs)) return vpmu::GuestLinear{at};
  return vpmu::GuestLinear{(sregs.ss.base + (at & vpmu::low_bits(sregs.ss.db != 0 ? 32 : 16))) & vpmu::low_bits(32)};
}
void set_stack_pointer(SoftState& state, std::uint64_t to) {
  auto& rsp = state.regs.rsp;
  if (is_64_bit_code(state.sregs))
    rsp = to;
  else if (state.sregs.ss.db != 0)
    rsp = to & vpmu::low_bits(32);
  else
    rsp = (rsp & vpmu::low_bits(32) & ~vpmu::low_bits(16)) | (to & vpmu::low_bits(16));
}

std::optional<Exception> far_jump(SoftState& state, GuestView& view, FarPointer to) {
  kvm_segment cs;
  if (const auto fault = code_segment(state, view, to.selector, Transfer::branch, cs)) return fault;
  if (const auto bad = bad_target(state, cs, to.offset)) return bad;
  state.sregs.cs = cs;
  state.regs.rip = to.offset;
  return std::nullopt;
}

std::optional<Exception> far_call(SoftState& state, GuestView& view, FarPointer to, std::uint64_t next,
                                  std::size_t bytes) {
  kvm_segment cs;
  if (const auto fault = code_segment(state, view, to.selector, Transfer::branch, cs)) return fault;
  if (const auto bad = bad_target(state, cs, to.offset)) return bad;
  const std::array<std::uint64_t, 2> words{state.sregs.cs.selector, next};
  for (std::size_t n = 0; n < words.size(); ++n) {
    const auto at = stack_address(state.sregs, state.regs.rsp - (n + 1) * bytes);
    if (const auto fault = view.write_current(at, std::as_bytes(std::span{&words[n], 1}).first(bytes)))
      return stack_exception(state, *fault);
  }
  set_stack_pointer(state, state.regs.rsp - words.size() * bytes);
  state.sregs.cs = cs;
  state.regs.rip = to.offset;
  return std::nullopt;
}

// To an outer level, the parameters are taken off both stacks.
std::optional<Exception> far_return(SoftState& state, GuestView& view, std::size_t bytes, std::uint64_t more) {
  constexpr std::size_t inner = 2;
  std::array<std::uint64_t, inner> frame{}, stack{};  // RIP, CS; RSP, SS
  if (const auto fault = read_frame(state, view, 0, bytes, frame)) return fault;
  const std::uint64_t behind = frame.size() * bytes + more;
  kvm_segment cs, ss;
  const auto selector = static_cast<std::uint16_t>(frame[1]);
  if (const auto fault = code_segment(state, view, selector, Transfer::back, cs)) return fault;
  const unsigned cpl = selector & 3U;
  const bool outer = !is_real_mode(state.sregs) && cpl != cpl_of(state.sregs);
  if (outer) {
    if (const auto fault = read_frame(state, view, behind, bytes, stack)) return fault;
    if (const auto fault = outer_stack(state, view, static_cast<std::uint16_t>(stack[1]), cpl, cs, ss)) return fault;
  }
  if (const auto bad = bad_target(state, cs, frame[0])) return bad;
  if (!outer) set_stack_pointer(state, state.regs.rsp + behind);
  state.sregs.cs = cs;
  state.regs.rip = frame[0];
  if (!outer) return std::nullopt;
  state.sregs.ss = ss;
  set_stack_pointer(state, stack[0] + more);
  drop_inner_segments(state.sregs, cpl);
  return std::nullopt;
}

std::optional<Exception> return_from_interrupt(SoftState& state, GuestView& view, std::size_t bytes) {
  if (is_long_mode(state.sregs) && x86::rflags::NT::test(state.regs.rflags)) return general_protection;
  constexpr std::size_t inner = 3;
  std::array<std::uint64_t, inner> frame{};  // RIP, CS, RFLAGS
  std::array<std::uint64_t, 2> stack{};      // RSP, SS
  if (const auto fault = read_frame(state, view, 0, bytes, frame)) return fault;
  const bool real = is_real_mode(state.sregs);
  const auto selector = static_cast<std::uint16_t>(frame[1]);
  const unsigned before = cpl_of(state.sregs), cpl = real ? 0 : selector & 3U;
  if (!real && bytes == 4 && (frame[2] & x86::rflags::VM::mask) != 0 && before == 0)
    return about(x86::vector::GP, selector);
  kvm_segment cs, ss;
  if (const auto fault = code_segment(state, view, selector, Transfer::back, cs)) return fault;
  const bool switches = is_64_bit_code(state.sregs) || cpl != before;
  if (switches) {
    if (const auto fault = read_frame(state, view, inner * bytes, bytes, stack)) return fault;
    if (const auto fault = outer_stack(state, view, static_cast<std::uint16_t>(stack[1]), cpl, cs, ss)) return fault;
  }
  if (const auto bad = bad_target(state, cs, frame[0])) return bad;
  std::uint64_t loadable = by_iret;
  if (bytes == 2) loadable &= vpmu::low_bits(16);
  if (before != 0) loadable &= ~x86::rflags::IOPL::mask;
  if (before > (state.regs.rflags & x86::rflags::IOPL::mask) >> 12) loadable &= ~x86::rflags::IF::mask;
  if (!switches) set_stack_pointer(state, state.regs.rsp + inner * bytes);
  state.sregs.cs = cs;
  state.regs.rip = frame[0];
  state.regs.rflags = (state.regs.rflags & ~loadable) | (frame[2] & loadable) | x86::rflags::fixed;
  state.events.nmi.masked = 0;
  if (!switches) return std::nullopt;
  state.sregs.ss = ss;
  set_stack_pointer(state, stack[0]);
  drop_inner_segments(state.sregs, cpl);
  return std::nullopt;
}

void system_call(SoftState& state, std::uint64_t next) {
  const std::uint64_t star = state.msrs[vpmu::msr::IA32_STAR.value()];
  kvm_regs& r = state.regs;
  r.rcx = next;
  r.r11 = r.rflags & ~x86::rflags::RF::mask;
  r.rip = state.msrs[vpmu::msr::IA32_LSTAR.value()];
  r.rflags = ((r.rflags & ~state.msrs[vpmu::msr::IA32_FMASK.value()]) | x86::rflags::fixed) & ~x86::rflags::RF::mask;
  state.sregs.cs = flat(star >> 32 & 0xFFFC, type_code, 0);
  state.sregs.ss = flat((star >> 32) + 8, type_data, 0);
}

std::optional<Exception> system_return(SoftState& state, bool to_64_bit_code) {
  constexpr std::uint64_t loaded = 0x3C'7FD7;
  const std::uint64_t base = state.msrs[vpmu::msr::IA32_STAR.value()] >> 48;
  kvm_regs& r = state.regs;
  if (to_64_bit_code && !vpmu::is_canonical(r.rcx, 48)) return general_protection;
  r.rip = to_64_bit_code ? r.rcx : r.rcx & vpmu::low_bits(32);
  r.rflags = (r.r11 & loaded) | x86::rflags::fixed;
  state.sregs.cs = flat((to_64_bit_code ? base + 16 : base) | 3, type_code, 3, to_64_bit_code);
  state.sregs.ss = flat((base + 8) | 3, type_data, 3);
  return std::nullopt;
}

std::optional<Exception> system_enter(SoftState& state) {
  const std::uint64_t selector = state.msrs[vpmu::msr::IA32_SYSENTER_CS.value()] & 0xFFFC;
  if (selector == 0 || is_real_mode(state.sregs)) return general_protection;
  const bool wide = is_long_mode(state.sregs);
  const std::uint64_t mask = vpmu::low_bits(wide ? 64 : 32);
  state.sregs.cs = flat(selector, type_code, 0, wide);
  state.sregs.ss = flat(selector + 8, type_data, 0);
  state.regs.rip = state.msrs[vpmu::msr::IA32_SYSENTER_EIP.value()] & mask;
  state.regs.rsp = state.msrs[vpmu::msr::IA32_SYSENTER_ESP.value()] & mask;
  state.regs.rflags &= ~(x86::rflags::VM::mask | x86::rflags::IF::mask | x86::rflags::RF::mask);
  return std::nullopt;
}

std::optional<Exception> system_exit(SoftState& state, bool to_64_bit_code) {
  const std::uint64_t selector = state.msrs[vpmu::msr::IA32_SYSENTER_CS.value()] & 0xFFFC;
  kvm_regs& r = state.regs;
  if (selector == 0 || is_real_mode(state.sregs)) return general_protection;
  if (to_64_bit_code && (!vpmu::is_canonical(r.rcx, 48) || !vpmu::is_canonical(r.rdx, 48))) return general_protection;
  const std::uint64_t mask = vpmu::low_bits(to_64_bit_code ? 64 : 32);
  state.sregs.cs = flat((selector + (to_64_bit_code ? 32 : 16)) | 3, type_code, 3, to_64_bit_code);
  state.sregs.ss = flat((selector + (to_64_bit_code ? 40 : 24)) | 3, type_data, 3);
  r.rip = r.rdx & mask;
  r.rsp = r.rcx & mask;
  return std::nullopt;
}

}  // namespace vmm
