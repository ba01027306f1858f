#pragma once
#include <cstdint>

/// start.S
extern "C" void bare_on_gp();

/// What a guest without an operating system needs to report about its processor on the serial port, under any VMM.
namespace bare {

struct CpuidResult {
  std::uint32_t eax, ebx, ecx, edx;
};

inline CpuidResult cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  CpuidResult r{};
  asm volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(leaf), "c"(subleaf));
  return r;
}

inline std::uint64_t rdmsr(std::uint32_t index) {
  std::uint32_t low = 0, high = 0;
  asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index));
  return std::uint64_t{high} << 32U | low;
}

inline void wrmsr(std::uint32_t index, std::uint64_t value) {
  asm volatile("wrmsr"
               :
               : "a"(static_cast<std::uint32_t>(value)), "d"(static_cast<std::uint32_t>(value >> 32U)), "c"(index));
}

inline std::uint8_t in(std::uint16_t port) {
  std::uint8_t value = 0;
  asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
  return value;
}

inline void out(std::uint16_t port, std::uint8_t value) { asm volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

constexpr std::uint16_t serial = 0x3F8, serial_line_control = serial + 3, serial_line_status = serial + 5;

inline void set_up_serial() {
  constexpr std::uint8_t divisor_latch = 0x80, eight_bits = 3;
  out(serial_line_control, divisor_latch | eight_bits);
  out(serial, 1);  // 115200
  out(serial + 1, 0);
  out(serial_line_control, eight_bits);
}

inline void put(char c) {
  constexpr std::uint8_t empty = 0x20;
  while ((in(serial_line_status)&empty) == 0) {
  }
  out(serial, static_cast<std::uint8_t>(c));
}

inline void put(const char* text) {
  for (; *text != 0; ++text) put(*text);
}

/// " 1f"
inline void put_hex(std::uint64_t value) {
  put(' ');
  unsigned shift = 60;
  while (shift != 0 && value >> shift == 0) shift -= 4;
  for (;; shift -= 4) {
    put("0123456789abcdef"[value >> shift & 0xF]);
    if (shift == 0) return;
  }
}

struct [[gnu::packed]] Gate {
  std::uint16_t offset_low, selector;
  std::uint8_t stack, type;
  std::uint16_t offset_middle;
  std::uint32_t offset_high, reserved;
};

struct [[gnu::packed]] TableRegister {
  std::uint16_t limit;
  std::uint64_t base;
};

constexpr unsigned gp = 13;
inline Gate gates[gp + 1];

/// Loads an IDT with only a #GP handler, which skips a faulting RDMSR and sets bare_faulted.
inline void catch_gp() {
  constexpr std::uint8_t interrupt_gate = 0x8E;
  std::uint16_t selector = 0;
  asm volatile("mov %%cs, %0" : "=r"(selector));
  const auto at = reinterpret_cast<std::uint64_t>(&bare_on_gp);
  gates[gp] = {.offset_low = static_cast<std::uint16_t>(at),
               .selector = selector,
               .stack = 0,
               .type = interrupt_gate,
               .offset_middle = static_cast<std::uint16_t>(at >> 16U),
               .offset_high = static_cast<std::uint32_t>(at >> 32U),
               .reserved = 0};
  const TableRegister idt{.limit = sizeof gates - 1, .base = reinterpret_cast<std::uint64_t>(&gates)};
  asm volatile("lidt %0" : : "m"(idt));
}

}  // namespace bare

/// The program. Returning from it ends the guest with a triple fault.
extern "C" void bare_main();
