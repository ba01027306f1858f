#pragma once
#include "exec/ops.hpp"

/// What integer instructions compute, and the flags they leave. SDM volume 2, each under its name; SDM 1 appendix A for the flags.
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
  if constexpr (What == Alu::add || What == Alu::adc) {
    const auto sum = static_cast<T>(a + b + (What == Alu::adc && flags.cf() ? 1 : 0));
    flags.set(sum, carries_of_add(a, b, sum));
    return sum;
  } else if constexpr (What == Alu::sub || What == Alu::sbb || What == Alu::cmp) {
    const auto difference = static_cast<T>(a - b - (What == Alu::sbb && flags.cf() ? 1 : 0));
    flags.set(difference, borrows_of_sub(a, b, difference));
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

template <Unary What, class T>
T compute(LazyFlags& flags, T a) {
  if constexpr (What == Unary::bit_not) return static_cast<T>(~a);
  if constexpr (What == Unary::neg) return compute<Alu::sub, T>(flags, 0, a);
  T result{};
  if constexpr (What == Unary::inc) {
    result = static_cast<T>(a + 1);
    flags.set_keeping_cf(result, carries_of_add<T>(a, 1, result));
  }
  if constexpr (What == Unary::dec) {
    result = static_cast<T>(a - 1);
    flags.set_keeping_cf(result, borrows_of_sub<T>(a, 1, result));
  }
  return result;
}

template <Alu What>
inline constexpr bool writes = What != Alu::cmp && What != Alu::test;

}  // namespace vpmu::exec
