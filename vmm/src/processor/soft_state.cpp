#include "processor/soft_state.hpp"

#include <algorithm>

namespace vmm {
namespace {

constexpr std::uint64_t rflags_fixed = 2;
constexpr std::uint64_t cr0_after_init = 0x6000'0010;
constexpr std::uint64_t dr6_after_init = 0xFFFF'0FF0, dr7_after_init = 0x400;

kvm_segment real_mode_segment(std::uint8_t type, std::uint16_t selector) {
  kvm_segment s{};
  s.base = std::uint64_t{selector} << 4;
  s.limit = 0xFFFF;
  s.selector = selector;
  s.type = type;
  s.present = s.s = 1;
  return s;
}

}  // namespace

void add_nmi(SoftState& s) {
  auto& nmi = s.events.nmi;
  const unsigned most = nmi.masked != 0 ? 1 : 2;
  nmi.pending = static_cast<std::uint8_t>(std::min(nmi.pending + 1U, most));
}

void reset_by_init(SoftState& s) {
  constexpr std::uint8_t data = 0x3;
  constexpr std::uint16_t idt_limit = 0x3FF;
  const kvm_sregs before = s.sregs;
  s.regs = {};
  s.regs.rflags = rflags_fixed;
  s.sregs = {};
  start_at_page(s, 0);
  s.sregs.ss = s.sregs.ds = s.sregs.es = s.sregs.fs = s.sregs.gs = real_mode_segment(data, 0);
  s.sregs.gdt.limit = 0xFFFF;
  s.sregs.idt.limit = idt_limit;
  s.sregs.cr0 = cr0_after_init;
  s.sregs.apic_base = before.apic_base;
  s.debug = {};
  s.debug.dr6 = dr6_after_init;
  s.debug.dr7 = dr7_after_init;
  s.events = {};
  s.apic.reset(s.id);
  s.halted = false;
  s.waits_for_start = true;
}

void start_at_page(SoftState& s, std::uint8_t vector) {
  constexpr std::uint8_t code = 0xB;
  s.sregs.cs = real_mode_segment(code, static_cast<std::uint16_t>(vector << 8U));
  s.regs.rip = 0;
  s.waits_for_start = false;
}

}  // namespace vmm
