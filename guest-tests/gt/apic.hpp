#pragma once
#include <cstdint>

#include "gt/asm.hpp"
#include "vpmu/bits.hpp"

/// The local APIC. SDM 3A chapter 10.
namespace gt::apic {

inline constexpr std::uint64_t base = 0xFEE0'0000;
inline constexpr std::uint32_t spurious_vector_offset = 0xF0, eoi_offset = 0xB0, task_priority_offset = 0x80,
                               command_offset = 0x300, command_high_offset = 0x310, lvtpc_offset = 0x340;

/// LVT entry of performance monitoring interrupts. SDM 3A figure 10-8.
namespace lvtpc {
using VECTOR = vpmu::Bits<7, 0>;
using DELIVERY_MODE = vpmu::Bits<10, 8>;
using MASK = vpmu::Bits<16>;
inline constexpr std::uint32_t nmi = 0x400;
inline constexpr std::uint32_t masked = 1U << 16;
}  // namespace lvtpc

/// Whether the CPUs use x2APIC mode; written by use_x2apic() alone.
inline constinit volatile bool is_x2apic = false;
inline constexpr MsrIndex ia32_apic_base{0x1B};
/// SDM 3A table 10-6.
constexpr MsrIndex x2apic_msr(std::uint32_t offset) { return MsrIndex{0x800 + offset / 0x10}; }

inline std::uint32_t read(std::uint32_t offset) {
  if (is_x2apic) return static_cast<std::uint32_t>(rdmsr(x2apic_msr(offset)));
  return *reinterpret_cast<volatile std::uint32_t*>(base + offset);
}
inline void write(std::uint32_t offset, std::uint32_t value) {
  if (is_x2apic) return wrmsr(x2apic_msr(offset), value);
  *reinterpret_cast<volatile std::uint32_t*>(base + offset) = value;
}

inline constexpr std::uint32_t software_enable = 1U << 8;
inline void enable() { write(spurious_vector_offset, software_enable | 0xFF); }
inline void disable() { write(spurious_vector_offset, 0xFF); }
/// Puts this CPU's APIC into x2APIC mode; others must follow before they use theirs. SDM 3A 10.12.1.
inline void use_x2apic() {
  constexpr std::uint64_t extd = 1U << 10;
  wrmsr(ia32_apic_base, rdmsr(ia32_apic_base) | extd);
  is_x2apic = true;
}

/// Interrupt commands: delivery mode and level. SDM 3A figure 10-12.
namespace command {
inline constexpr std::uint32_t fixed = 0x4000, nmi = 0x4400, init = 0x4500, startup = 0x4600;
}
/// Sends a command to the CPU with that APIC id.
inline void send(std::uint32_t id, std::uint32_t what) {
  if (is_x2apic) return wrmsr(x2apic_msr(command_offset), (std::uint64_t{id} << 32) | what);
  constexpr std::uint32_t pending = 1U << 12;
  while ((read(command_offset) & pending) != 0) {
  }
  write(command_high_offset, id << 24);
  write(command_offset, what);
}
/// Sends a fixed interrupt to this CPU. SDM 3A figure 10-12.
inline void send_to_self(std::uint8_t vector) {
  constexpr std::uint32_t self = 1U << 18;
  write(command_offset, self | command::fixed | vector);
}
/// Starts the APIC's timer for one interrupt after `ticks`. SDM 3A 10.5.4.
inline void start_timer(std::uint8_t vector, std::uint32_t ticks) {
  constexpr std::uint32_t lvt_timer_offset = 0x320, initial_count_offset = 0x380, divide_offset = 0x3E0,
                          divide_by_one = 0xB;
  write(divide_offset, divide_by_one);
  write(lvt_timer_offset, vector);
  write(initial_count_offset, ticks);
}
inline void end_of_interrupt() { write(eoi_offset, 0); }

}  // namespace gt::apic
