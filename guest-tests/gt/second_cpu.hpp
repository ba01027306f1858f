#pragma once
#include <cstdint>

/// The machine's second CPU, for tests with need_second_cpu. SDM 3A 8.4.
namespace gt {

inline constexpr std::uint32_t first_cpu_id = 0, second_cpu_id = 1;

/// Starts the second CPU in 64-bit mode with this CPU's memory and handlers, interrupts off and the APIC enabled. It
/// calls `function` and then halts for ever. Once per test. Ends the test if the CPU does not start.
void start_second_cpu(void (*function)());

}  // namespace gt
