#pragma once
#include <cstdint>

#include "vpmu/bits.hpp"

/// The local APIC, xAPIC mode. SDM 3A chapter 10.
namespace gt::apic {

inline constexpr std::uint64_t base = 0xFEE0'0000;
inline constexpr std::uint32_t spurious_vector_offset = 0xF0, eoi_offset = 0xB0, task_priority_offset = 0x80,
                               command_offset = 0x300, lvtpc_offset = 0x340;

/// LVT entry of performance monitoring interrupts. SDM 3A figure 10-8.
namespace lvtpc {
using VECTOR = vpmu::Bits<7, 0>;
using DELIVERY_MODE = vpmu::Bits<10, 8>;
using MASK = vpmu::Bits<16>;
inline constexpr std::uint32_t nmi = 0x400;
inline constexpr std::uint32_t masked = 1U << 16;
}  // namespace lvtpc

inline std::uint32_t read(std::uint32_t offset) { return *reinterpret_cast<volatile std::uint32_t*>(base + offset); }
inline void write(std::uint32_t offset, std::uint32_t value) {
  *reinterpret_cast<volatile std::uint32_t*>(base + offset) = value;
}

inline constexpr std::uint32_t software_enable = 1U << 8;
inline void enable() { write(spurious_vector_offset, software_enable | 0xFF); }
inline void disable() { write(spurious_vector_offset, 0xFF); }
/// A fixed interrupt to this CPU. SDM 3A figure 10-12.
inline void send_to_self(std::uint8_t vector) {
  constexpr std::uint32_t self = 1U << 18, assert_level = 1U << 14;
  write(command_offset, self | assert_level | vector);
}
/// Once, after so many ticks of the APIC's timer. SDM 3A 10.5.4.
inline void start_timer(std::uint8_t vector, std::uint32_t ticks) {
  constexpr std::uint32_t lvt_timer_offset = 0x320, initial_count_offset = 0x380, divide_offset = 0x3E0,
                          divide_by_one = 0xB;
  write(divide_offset, divide_by_one);
  write(lvt_timer_offset, vector);
  write(initial_count_offset, ticks);
}
inline void end_of_interrupt() { write(eoi_offset, 0); }

}  // namespace gt::apic
