#include "processor/far_transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "decode/instruction.hpp"
#include "processor/exceptions.hpp"
#include "vcpu/segments.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint64_t cr0_pe = bit(0), efer_lma = bit(10);
constexpr std::uint64_t rflags_if = bit(9), rflags_rf = bit(16), rflags_vm = bit(17), rflags_iopl = 3ULL << 12,
                        rflags_fixed = bit(1);
/// All flags that software may load into RFLAGS.
constexpr std::uint64_t rflags_loadable = 0x25'7FD5;
/// Descriptor types, accessed: readable code, writable data.
constexpr std::uint8_t type_code = 0xB, type_data = 0x3;
constexpr std::uint32_t msr_sysenter_cs = 0x174, msr_sysenter_esp = 0x175, msr_sysenter_eip = 0x176;
constexpr std::uint32_t msr_star = 0xC000'0081, msr_lstar = 0xC000'0082, msr_fmask = 0xC000'0084;

Exception protection(std::uint16_t selector) { return {vector_gp, selector & ~3U}; }

/// Reads words of a stack frame as the instruction would.
template <std::size_t N>
std::optional<Exception> read_frame(SoftState& state, GuestView& view, std::size_t bytes, std::size_t count,
                                    std::array<std::uint64_t, N>& words) {
  for (std::size_t n = 0; n < count; ++n) {
    const auto at = stack_address(state.sregs, state.regs.rsp + n * bytes);
    if (const auto fault = view.read_current(at, std::as_writable_bytes(std::span{&words[n], 1}).first(bytes)))
      return page_fault(state, *fault);
  }
  return std::nullopt;
}

/// Loads the code segment of a far branch from privilege level `cpl`.
std::optional<kvm_segment> code_segment(SoftState& state, GuestView& view, std::uint16_t selector, unsigned cpl) {
  if (is_real_mode(state.sregs)) return real_mode_segment(selector, true);
  auto cs = segment_of(view, state.sregs, selector);
  const bool is_code = cs && cs->s != 0 && cs->present != 0 && (cs->type & 8) != 0;
  if (!is_code || cs->dpl != cpl) return std::nullopt;
  if (!is_long_mode(state.sregs)) cs->l = 0;
  if (cs->l != 0 && cs->db != 0) return std::nullopt;
  cs->selector = static_cast<std::uint16_t>((selector & ~3U) | cpl);
  return cs;
}

std::optional<Exception> bad_target(const SoftState& state, const kvm_segment& cs, std::uint64_t& offset) {
  if (is_long_mode(state.sregs) && cs.l != 0)
    return vpmu::is_canonical(offset, 48) ? std::nullopt : std::optional{general_protection};
  offset &= vpmu::low_bits(32);
  return std::nullopt;
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

bool is_real_mode(const kvm_sregs& sregs) { return (sregs.cr0 & cr0_pe) == 0; }
bool is_long_mode(const kvm_sregs& sregs) { return (sregs.efer & efer_lma) != 0; }
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
    rsp = (rsp & ~vpmu::low_bits(16)) | (to & vpmu::low_bits(16));
}

std::optional<Exception> far_jump(SoftState& state, GuestView& view, FarPointer to) {
  const auto cs = code_segment(state, view, to.selector, cpl_of(state.sregs));
  if (!cs) return protection(to.selector);
  if (const auto bad = bad_target(state, *cs, to.offset)) return bad;
  state.sregs.cs = *cs;
  state.regs.rip = to.offset;
  return std::nullopt;
}

std::optional<Exception> far_call(SoftState& state, GuestView& view, FarPointer to, std::uint64_t next,
                                  std::size_t bytes) {
  const auto cs = code_segment(state, view, to.selector, cpl_of(state.sregs));
  if (!cs) return protection(to.selector);
  if (const auto bad = bad_target(state, *cs, to.offset)) return bad;
  const std::array<std::uint64_t, 2> words{state.sregs.cs.selector, next};
  for (std::size_t n = 0; n < words.size(); ++n) {
    const auto at = stack_address(state.sregs, state.regs.rsp - (n + 1) * bytes);
    if (const auto fault = view.write_current(at, std::as_bytes(std::span{&words[n], 1}).first(bytes)))
      return page_fault(state, *fault);
  }
  set_stack_pointer(state, state.regs.rsp - words.size() * bytes);
  state.sregs.cs = *cs;
  state.regs.rip = to.offset;
  return std::nullopt;
}

std::optional<Exception> far_return(SoftState& state, GuestView& view, std::size_t bytes, std::uint64_t more) {
  std::array<std::uint64_t, 2> frame{};  // RIP, CS
  if (const auto fault = read_frame(state, view, bytes, frame.size(), frame)) return fault;
  const std::uint64_t behind = state.regs.rsp + frame.size() * bytes + more;
  const auto cs = code_segment(state, view, static_cast<std::uint16_t>(frame[1]), cpl_of(state.sregs));
  if (!cs) return protection(static_cast<std::uint16_t>(frame[1]));
  if (const auto bad = bad_target(state, *cs, frame[0])) return bad;
  set_stack_pointer(state, behind);
  state.sregs.cs = *cs;
  state.regs.rip = frame[0];
  return std::nullopt;
}

std::optional<Exception> return_from_interrupt(SoftState& state, GuestView& view, std::size_t bytes) {
  constexpr std::size_t inner = 3, outer = 5;  // RIP, CS, RFLAGS; RSP, SS
  std::array<std::uint64_t, outer> frame{};
  if (const auto fault = read_frame(state, view, bytes, inner, frame)) return fault;
  const bool real = is_real_mode(state.sregs);
  const auto selector = static_cast<std::uint16_t>(frame[1]);
  const unsigned cpl = real ? 0 : selector & 3U;
  if (!real && (cpl < cpl_of(state.sregs) || (bytes == 4 && (frame[2] & rflags_vm) != 0))) return protection(selector);
  const auto cs = code_segment(state, view, selector, cpl);
  if (!cs) return protection(selector);
  if (const auto bad = bad_target(state, *cs, frame[0])) return bad;
  const bool switches = is_64_bit_code(state.sregs) || cpl != cpl_of(state.sregs);
  std::optional<kvm_segment> ss;
  if (switches) {
    if (const auto fault = read_frame(state, view, bytes, outer, frame)) return fault;
    const auto stack_selector = static_cast<std::uint16_t>(frame[4]);
    const bool may_be_null = is_long_mode(state.sregs) && cs->l != 0 && cpl != 3;
    ss = (stack_selector & ~3U) == 0 && may_be_null ? null_stack(stack_selector, cpl)
                                                    : segment_of(view, state.sregs, stack_selector);
    const bool writable = ss && ss->s != 0 && ss->present != 0 && (ss->type & 0xA) == 2;
    if (!writable || ss->dpl != cpl) return protection(stack_selector);
  }
  std::uint64_t loadable = rflags_loadable;
  if (bytes == 2) loadable &= vpmu::low_bits(16);
  if (cpl_of(state.sregs) != 0) loadable &= ~(rflags_iopl | rflags_if);
  if (!switches) set_stack_pointer(state, state.regs.rsp + inner * bytes);
  state.sregs.cs = *cs;
  if (switches) {
    state.sregs.ss = *ss;
    state.regs.rsp = frame[3];
  }
  state.regs.rip = frame[0];
  state.regs.rflags = (state.regs.rflags & ~loadable) | (frame[2] & loadable) | rflags_fixed;
  state.events.nmi.masked = 0;
  return std::nullopt;
}

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

std::optional<Exception> system_return(SoftState& state, bool to_64_bit_code) {
  constexpr std::uint64_t loaded = 0x3C'7FD7;
  const std::uint64_t base = state.msrs[msr_star] >> 48;
  kvm_regs& r = state.regs;
  if (to_64_bit_code && !vpmu::is_canonical(r.rcx, 48)) return general_protection;
  r.rip = to_64_bit_code ? r.rcx : r.rcx & vpmu::low_bits(32);
  r.rflags = (r.r11 & loaded) | rflags_fixed;
  state.sregs.cs = flat((to_64_bit_code ? base + 16 : base) | 3, type_code, 3, to_64_bit_code);
  state.sregs.ss = flat((base + 8) | 3, type_data, 3);
  return std::nullopt;
}

std::optional<Exception> system_enter(SoftState& state) {
  const std::uint64_t selector = state.msrs[msr_sysenter_cs] & 0xFFFC;
  if (selector == 0 || is_real_mode(state.sregs)) return general_protection;
  const bool wide = is_long_mode(state.sregs);
  const std::uint64_t mask = vpmu::low_bits(wide ? 64 : 32);
  state.sregs.cs = flat(selector, type_code, 0, wide);
  state.sregs.ss = flat(selector + 8, type_data, 0);
  state.regs.rip = state.msrs[msr_sysenter_eip] & mask;
  state.regs.rsp = state.msrs[msr_sysenter_esp] & mask;
  state.regs.rflags &= ~(rflags_vm | rflags_if | rflags_rf);
  return std::nullopt;
}

std::optional<Exception> system_exit(SoftState& state, bool to_64_bit_code) {
  const std::uint64_t selector = state.msrs[msr_sysenter_cs] & 0xFFFC;
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
