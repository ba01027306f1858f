#include "boot/cpu_tables.hpp"

#include <array>
#include <span>

#include "boot/layout.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;
using vpmu::page_size;

// Segment descriptors, SDM 3A 3.4.5: base 0, limit 4 GiB, ring 0.
constexpr std::uint64_t code_descriptor = 0x00AF9B000000FFFF;
constexpr std::uint64_t code_32_descriptor = 0x00CF9B000000FFFF;
constexpr std::uint64_t data_descriptor = 0x00CF93000000FFFF;
// 64-bit TSS of limit 67H at 0; VMX requires a busy one.
constexpr std::uint64_t tss_descriptor = 0x00008B0000000067;
/// By selector: 00H unused; 08H for 32-bit code; 10H and 18H as the Linux 64-bit boot protocol asks (__BOOT_CS,
/// __BOOT_DS).
constexpr std::array<std::uint64_t, 6> gdt{0, code_32_descriptor, code_descriptor, data_descriptor, tss_descriptor, 0};
constexpr std::uint16_t code_32_selector = 0x08;
constexpr std::uint16_t code_selector = 0x10;
constexpr std::uint16_t data_selector = 0x18;
constexpr std::uint16_t tss_selector = 0x20;

// Paging-structure entries, SDM 3A table 4-14 to 4-19.
constexpr std::uint64_t present_writable = bit(0) | bit(1);
constexpr std::uint64_t large_page = bit(7);
constexpr std::uint64_t large_page_bytes = 2ULL << 20U;
constexpr unsigned directories = 4;
constexpr unsigned entries_per_table = 512;

kvm_segment flat_segment(std::uint16_t selector, std::uint8_t type) {
  kvm_segment segment{};
  segment.limit = 0xFFFFFFFF;
  segment.selector = selector;
  segment.type = type;
  segment.present = 1;
  segment.s = 1;
  segment.g = 1;
  return segment;
}

kvm_segment code_segment(StartRegisters::Mode mode) {
  const bool is_64_bit = mode == StartRegisters::Mode::bits64;
  auto segment = flat_segment(is_64_bit ? code_selector : code_32_selector, 0xB);
  segment.l = is_64_bit ? 1 : 0;
  segment.db = is_64_bit ? 0 : 1;
  return segment;
}

kvm_segment data_segment() {
  auto segment = flat_segment(data_selector, 0x3);
  segment.db = 1;
  return segment;
}

kvm_segment task_segment() {
  kvm_segment segment{};
  segment.limit = 0x67;
  segment.selector = tss_selector;
  segment.type = 0xB;
  segment.present = 1;
  return segment;
}

}  // namespace

bool write_cpu_tables(const GuestMemory& memory) {
  const auto pml4 = layout::page_tables;
  const auto pdpt = pml4 + page_size;
  bool ok = memory.write(layout::gdt, std::as_bytes(std::span{gdt})) &&
            memory.store<std::uint64_t>(pml4, pdpt.value() | present_writable);
  for (std::uint64_t d = 0; d < directories; ++d) {
    const auto directory = pdpt + page_size * (d + 1);
    ok = ok && memory.store<std::uint64_t>(pdpt + d * 8, directory.value() | present_writable);
    for (std::uint64_t e = 0; e < entries_per_table; ++e) {
      const std::uint64_t page = (d * entries_per_table + e) * large_page_bytes;
      ok = ok && memory.store<std::uint64_t>(directory + e * 8, page | present_writable | large_page);
    }
  }
  return ok;
}

kvm_sregs start_sregs(const kvm_sregs& from, StartRegisters::Mode mode) {
  kvm_sregs sregs = from;
  sregs.cs = code_segment(mode);
  sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data_segment();
  sregs.tr = task_segment();
  sregs.gdt = {.base = layout::gdt.value(), .limit = sizeof gdt - 1};
  sregs.idt = {};
  sregs.cr0 = x86::cr0::PE::mask | x86::cr0::ET::mask;
  sregs.cr3 = sregs.cr4 = sregs.efer = 0;
  if (mode == StartRegisters::Mode::bits32) return sregs;
  sregs.cr0 |= x86::cr0::NE::mask | x86::cr0::WP::mask | x86::cr0::PG::mask;
  sregs.cr3 = layout::page_tables.value();
  sregs.cr4 = x86::cr4::PAE::mask;
  sregs.efer = x86::efer::LME::mask | x86::efer::LMA::mask;
  return sregs;
}

kvm_regs start_registers(const StartRegisters& start) {
  kvm_regs regs{};
  regs.rflags = bit(1);
  regs.rip = start.rip.value();
  regs.rax = start.rax;
  regs.rbx = start.rbx;
  regs.rsp = start.rsp;
  regs.rdi = start.rdi;
  regs.rsi = start.rsi;
  return regs;
}

Result<void> enter_at(Vcpu& vcpu, const StartRegisters& start) {
  VMM_ASSIGN(const auto sregs, vcpu.sregs());
  VMM_TRY(vcpu.set_sregs(start_sregs(sregs, start.mode)));
  VMM_TRY(vcpu.set_regs(start_registers(start)));
  return vcpu.flush();
}

}  // namespace vmm
