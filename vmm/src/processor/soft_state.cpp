#include "processor/soft_state.hpp"
#include "support/x86.hpp"

#include <algorithm>

namespace vmm {
namespace {

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
  const unsigned max = nmi.masked != 0 ? 1 : 2;
  nmi.pending = static_cast<std::uint8_t>(std::min(nmi.pending + 1U, max));
}

void reset_by_init(SoftState& s) {
  constexpr std::uint8_t data = 0x3;
  constexpr std::uint16_t idt_limit = 0x3FF;
  const kvm_sregs before = s.sregs;
  s.regs = {};
  s.regs.rflags = x86::rflags::fixed;
  s.sregs = {};
  start_at_page(s, 0);
  s.sregs.ss = s.sregs.ds = s.sregs.es = s.sregs.fs = s.sregs.gs = real_mode_segment(data, 0);
  s.sregs.gdt.limit = 0xFFFF;
  s.sregs.idt.limit = idt_limit;
  s.sregs.cr0 = x86::cr0::after_reset;
  s.sregs.apic_base = before.apic_base;
  s.debug = {};
  s.debug.dr6 = x86::dr6::fixed;
  s.debug.dr7 = x86::dr7::fixed;
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
