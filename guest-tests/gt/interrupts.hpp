#pragma once
#include <cstdint>

/// The descriptor tables of the test kernel, exceptions and interrupts, and CPL 3.
namespace gt {

/// What a vector's stub pushes, lowest address first. SDM 3A figure 6-8.
struct InterruptFrame {
  std::uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
  std::uint64_t vector, error_code;
  std::uint64_t rip, cs, rflags, rsp, ss;
  [[nodiscard]] unsigned cpl() const { return cs & 3; }
};

using InterruptHandler = void (*)(InterruptFrame&);

/// Loads GDT, TSS and IDT. Called once, before anything can fault.
void set_up_interrupts();
/// The same GDT and IDT for another CPU, which has no TSS: no code at CPL 3 there.
void share_interrupts();

/// Handles a vector from now on. Without a handler an exception ends the test as failed, unless a `try_` form caught
/// it.
void on_vector(std::uint64_t vector, InterruptHandler handler);

/// Calls `function(argument)` at CPL 3 with interrupts off; faults of `try_` forms work there too. IDTs and stacks are
/// mapped for it.
void run_at_cpl3(void (*function)(void*), void* argument);

}  // namespace gt
