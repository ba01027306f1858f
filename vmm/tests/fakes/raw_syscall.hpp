#pragma once
#include <array>
#include <cerrno>

/// Attribute for a syscall() that replaces the C library's: like that one, it always reads six arguments, also when its
/// caller passed fewer.
#define READS_SIX_ARGUMENTS __attribute__((no_sanitize("address")))

namespace vmm::test {

/// Does what the C library's syscall() does, for tests that replace it.
inline long raw_syscall(long number, const std::array<long, 6>& a) {
  // NOLINTBEGIN(misc-const-correctness): the asm writes r10, and g++ need not keep a const one in its register.
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  long result = number;
  // NOLINTEND(misc-const-correctness)
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  constexpr long max_errno = 4095;
  if (result >= 0 || result < -max_errno) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace vmm::test
