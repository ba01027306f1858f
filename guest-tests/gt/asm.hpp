#pragma once
#include <cstdint>

#include "vpmu/msr.hpp"
#include "vpmu/x86.hpp"

/// Instructions. The `try_` forms report a fault as a value instead of failing the test.
namespace gt {

using vpmu::MsrIndex;
namespace x86 = vpmu::x86;

/// The result of a `try_` form.
struct Outcome {
  static constexpr std::uint64_t none = 0xFF;
  std::uint64_t vector{none};  ///< Exception, `none` when the instruction completed.
  std::uint64_t error_code{};
  std::uint64_t cr2{};    ///< Meaningful for #PF.
  std::uint64_t value{};  ///< Meaningful when the instruction completed.
  [[nodiscard]] bool ok() const { return vector == none; }
};

/// The exception caught by the last guarded instruction. Written by the exception handler.
extern volatile std::uint64_t caught_vector, caught_error_code, caught_cr2;

/// An entry of the section that tells the exception handler where to resume: {faulting instruction, resume}.
#define GT_GUARD(fault, resume) ".pushsection .gt_fixups, \"aw\"\n .quad " fault ", " resume "\n .popsection\n"

inline void arm_guard() { caught_vector = Outcome::none; }
inline Outcome guard_outcome(std::uint64_t value) {
  return {.vector = caught_vector, .error_code = caught_error_code, .cr2 = caught_cr2, .value = value};
}

inline std::uint64_t rdmsr(MsrIndex index) {
  std::uint32_t low, high;
  asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index.value()) : "memory");
  return (std::uint64_t{high} << 32) | low;
}

inline void wrmsr(MsrIndex index, std::uint64_t value) {
  asm volatile("wrmsr" ::"a"(static_cast<std::uint32_t>(value)), "d"(static_cast<std::uint32_t>(value >> 32)),
               "c"(index.value())
               : "memory");
}

inline Outcome try_rdmsr(MsrIndex index) {
  std::uint32_t low = 0, high = 0;
  arm_guard();
  asm volatile("1: rdmsr\n2:\n" GT_GUARD("1b", "2b") : "+a"(low), "+d"(high) : "c"(index.value()) : "memory");
  return guard_outcome((std::uint64_t{high} << 32) | low);
}

inline Outcome try_wrmsr(MsrIndex index, std::uint64_t value) {
  arm_guard();
  asm volatile("1: wrmsr\n2:\n" GT_GUARD("1b", "2b")::"a"(static_cast<std::uint32_t>(value)),
               "d"(static_cast<std::uint32_t>(value >> 32)), "c"(index.value())
               : "memory");
  return guard_outcome(value);
}

inline std::uint64_t rdpmc(std::uint32_t index) {
  std::uint32_t low, high;
  asm volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(index) : "memory");
  return (std::uint64_t{high} << 32) | low;
}

inline Outcome try_rdpmc(std::uint32_t index) {
  std::uint32_t low = 0, high = 0;
  arm_guard();
  asm volatile("1: rdpmc\n2:\n" GT_GUARD("1b", "2b") : "+a"(low), "+d"(high) : "c"(index) : "memory");
  return guard_outcome((std::uint64_t{high} << 32) | low);
}

inline Outcome try_load(std::uint64_t address) {
  std::uint64_t value = 0;
  arm_guard();
  asm volatile("1: mov (%1), %0\n2:\n" GT_GUARD("1b", "2b") : "+r"(value) : "r"(address) : "memory");
  return guard_outcome(value);
}

inline Outcome try_store(std::uint64_t address, std::uint64_t value) {
  arm_guard();
  asm volatile("1: mov %1, (%0)\n2:\n" GT_GUARD("1b", "2b")::"r"(address), "r"(value) : "memory");
  return guard_outcome(value);
}

inline Outcome try_ud2() {
  arm_guard();
  asm volatile("1: ud2\n2:\n" GT_GUARD("1b", "2b")::: "memory");
  return guard_outcome(0);
}

inline void pause() { asm volatile("pause" ::: "memory"); }
inline std::uint64_t rdtsc() {
  std::uint32_t low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
  return (std::uint64_t{high} << 32) | low;
}

struct CpuidResult {
  std::uint32_t eax, ebx, ecx, edx;
};
inline CpuidResult cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  CpuidResult r{};
  asm volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(leaf), "c"(subleaf));
  return r;
}

inline void out32(std::uint16_t port, std::uint32_t value) {
  asm volatile("outl %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

inline void enable_interrupts() { asm volatile("sti" ::: "memory"); }
inline void disable_interrupts() { asm volatile("cli" ::: "memory"); }
/// Waits for an interrupt: STI's shadow keeps one from arriving between STI and HLT. SDM 2B STI.
inline void halt_with_interrupts() { asm volatile("sti\n hlt\n cli" ::: "memory"); }
/// Waits for an NMI with interrupts disabled.
inline void halt() { asm volatile("hlt" ::: "memory"); }

inline std::uint64_t read_cr0() {
  std::uint64_t v;
  asm volatile("mov %%cr0, %0" : "=r"(v));
  return v;
}
inline void write_cr0(std::uint64_t v) { asm volatile("mov %0, %%cr0" ::"r"(v) : "memory"); }
inline std::uint64_t read_cr2() {
  std::uint64_t v;
  asm volatile("mov %%cr2, %0" : "=r"(v));
  return v;
}
inline std::uint64_t read_cr3() {
  std::uint64_t v = 0;
  asm volatile("mov %%cr3, %0" : "=r"(v));
  return v;
}
inline void write_cr3(std::uint64_t v) { asm volatile("mov %0, %%cr3" ::"r"(v) : "memory"); }
inline std::uint64_t read_cr4() {
  std::uint64_t v;
  asm volatile("mov %%cr4, %0" : "=r"(v));
  return v;
}
inline void write_cr4(std::uint64_t v) { asm volatile("mov %0, %%cr4" ::"r"(v) : "memory"); }
inline void invlpg(std::uint64_t address) { asm volatile("invlpg (%0)" ::"r"(address) : "memory"); }

inline void write_dr0(std::uint64_t v) { asm volatile("mov %0, %%dr0" ::"r"(v)); }
inline void write_dr6(std::uint64_t v) { asm volatile("mov %0, %%dr6" ::"r"(v)); }
inline void write_dr7(std::uint64_t v) { asm volatile("mov %0, %%dr7" ::"r"(v)); }
inline std::uint64_t read_dr0() {
  std::uint64_t v;
  asm volatile("mov %%dr0, %0" : "=r"(v));
  return v;
}
inline std::uint64_t read_dr6() {
  std::uint64_t v;
  asm volatile("mov %%dr6, %0" : "=r"(v));
  return v;
}
inline std::uint64_t read_dr7() {
  std::uint64_t v;
  asm volatile("mov %%dr7, %0" : "=r"(v));
  return v;
}

}  // namespace gt
