#pragma once
#include "exec/interpret/ops.hpp"

/// What integer instructions compute, and the flags they leave. SDM volume 2, each under its name; SDM 1 appendix A for
/// the flags.
namespace vpmu::exec {

template <class T>
constexpr T carries_of_add(T a, T b, T sum) {
  return static_cast<T>((a & b) | ((a | b) & ~sum));
}
template <class T>
constexpr T borrows_of_sub(T a, T b, T difference) {
  return static_cast<T>((~a & b) | ((~a | b) & difference));
}

template <Alu What, class T>
T compute(LazyFlags& flags, T a, T b) {
  if constexpr (What == Alu::add) {
    flags.set_add(a, b);
    return static_cast<T>(a + b);
  } else if constexpr (What == Alu::sub || What == Alu::cmp) {
    flags.set_sub(a, b);
    return static_cast<T>(a - b);
  } else if constexpr (What == Alu::adc) {
    const auto sum = static_cast<T>(a + b + (flags.cf() ? 1 : 0));
    flags.set_carries(sum, carries_of_add(a, b, sum));
    return sum;
  } else if constexpr (What == Alu::sbb) {
    const auto difference = static_cast<T>(a - b - (flags.cf() ? 1 : 0));
    flags.set_carries(difference, borrows_of_sub(a, b, difference));
    return difference;
  } else {
    T result{};
    if constexpr (What == Alu::bit_or) result = a | b;
    if constexpr (What == Alu::bit_and || What == Alu::test) result = a & b;
    if constexpr (What == Alu::bit_xor) result = a ^ b;
    flags.set_logic(result);
    return result;
  }
}

/// `carry`: CF, which INC and DEC leave.
template <Unary What, class T>
T compute(LazyFlags& flags, T a, bool carry) {
  if constexpr (What == Unary::bit_not) return static_cast<T>(~a);
  if constexpr (What == Unary::neg) return compute<Alu::sub, T>(flags, 0, a);
  const auto result = static_cast<T>(What == Unary::inc ? a + 1 : a - 1);
  if constexpr (What == Unary::inc) flags.set_inc(result, carry);
  if constexpr (What == Unary::dec) flags.set_dec(result, carry);
  return result;
}
template <Unary What, class T>
T compute(LazyFlags& flags, T a) {
  return compute<What>(flags, a, (What == Unary::inc || What == Unary::dec) && flags.cf());
}

template <Alu What>
inline constexpr bool writes = What != Alu::cmp && What != Alu::test;

}  // namespace vpmu::exec
