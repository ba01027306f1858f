#pragma once
#include <bit>
#include <concepts>
#include <cstdint>

namespace vpmu::exec {

/// Positions of the status flags in RFLAGS. SDM 1 3.4.3.
namespace rflags {
inline constexpr std::uint64_t CF = 1U << 0, PF = 1U << 2, AF = 1U << 4, ZF = 1U << 6, SF = 1U << 7, TF = 1U << 8, IF = 1U << 9,
                               DF = 1U << 10, OF = 1U << 11, NT = 1U << 14, RF = 1U << 16, AC = 1U << 18;
inline constexpr std::uint64_t status = CF | PF | AF | ZF | SF | OF;
}  // namespace rflags

/// The status flags, not as bits but as what they follow from: most are overwritten before anyone looks.
class LazyFlags {
 public:
  [[nodiscard]] bool cf() const { return (carry_ >> 63) != 0; }
  [[nodiscard]] bool of() const { return ((carry_ ^ carry_ << 1) >> 63) != 0; }
  [[nodiscard]] bool af() const { return (carry_ & aux) != 0; }
  [[nodiscard]] bool zf() const { return result_ == 0; }
  [[nodiscard]] bool sf() const { return ((result_ >> 63) ^ (carry_ & sign_differs)) != 0; }
  [[nodiscard]] bool pf() const { return (std::popcount((result_ ^ carry_ >> parity_shift) & 0xFFU) & 1) == 0; }

  /// The six flags at their places in RFLAGS.
  [[nodiscard]] std::uint64_t bits() const {
    return (cf() ? rflags::CF : 0) | (pf() ? rflags::PF : 0) | (af() ? rflags::AF : 0) | (zf() ? rflags::ZF : 0) |
           (sf() ? rflags::SF : 0) | (of() ? rflags::OF : 0);
  }
  void set_bits(std::uint64_t bits) {
    const bool zero = (bits & rflags::ZF) != 0;
    result_ = zero ? 0 : 1;
    carry_ = 0;
    put_carry((bits & rflags::CF) != 0, (bits & rflags::OF) != 0);
    if ((bits & rflags::AF) != 0) carry_ |= aux;
    if ((bits & rflags::SF) != 0) carry_ |= sign_differs;
    const bool even = zero;  // of result_ as it is
    if (((bits & rflags::PF) != 0) != even) carry_ |= 1ULL << parity_shift;
  }

  /// `carries`: the carry out of each bit of the operation that gave `result`.
  template <std::unsigned_integral T>
  void set(T result, T carries) {
    result_ = extend(result);
    carry_ = (at_top(carries) & top_two) | (std::uint64_t{carries} & aux);
  }
  template <std::unsigned_integral T>
  void set_logic(T result) {
    result_ = extend(result);
    carry_ = 0;
  }
  template <std::unsigned_integral T>
  void set_keeping_cf(T result, T carries) {
    const bool carry = cf();
    set(result, carries);
    const bool overflow = of();
    carry_ &= ~top_two;
    put_carry(carry, overflow);
  }
  template <std::unsigned_integral T>
  void set_shift(T result, bool carry, bool overflow) {
    result_ = extend(result);
    carry_ = 0;
    put_carry(carry, overflow);
  }
  /// Changes CF and OF alone.
  void set_cf_of(bool carry, bool overflow) {
    carry_ &= ~top_two;
    put_carry(carry, overflow);
  }
  void set_cf(bool carry) { set_cf_of(carry, of()); }
  void set_zf(bool zero) { set_bits((bits() & ~rflags::ZF) | (zero ? rflags::ZF : 0)); }

 private:
  // carry_: bit 63 is CF, and bit 62 differs from it when OF is set; bit 3 is AF. The rest says where SF and PF are not those of result_.
  static constexpr std::uint64_t top_two = 3ULL << 62, aux = 1U << 3, sign_differs = 1;
  static constexpr unsigned parity_shift = 8;

  template <class T>
  static std::uint64_t extend(T value) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::make_signed_t<T>>(value)));
  }
  template <class T>
  static std::uint64_t at_top(T value) {
    return std::uint64_t{value} << (64 - 8 * sizeof(T));
  }
  void put_carry(bool carry, bool overflow) {
    carry_ |= (carry ? 1ULL << 63 : 0) | (carry != overflow ? 1ULL << 62 : 0);
  }

  std::uint64_t result_{1};
  std::uint64_t carry_{};
};

/// The sixteen conditions of Jcc, SETcc and CMOVcc, by the low four bits of their opcodes. SDM 1 appendix B.
template <unsigned CC>
bool holds(const LazyFlags& f) {
  bool truth{};
  if constexpr (CC / 2 == 0) truth = f.of();
  if constexpr (CC / 2 == 1) truth = f.cf();
  if constexpr (CC / 2 == 2) truth = f.zf();
  if constexpr (CC / 2 == 3) truth = f.cf() || f.zf();
  if constexpr (CC / 2 == 4) truth = f.sf();
  if constexpr (CC / 2 == 5) truth = f.pf();
  if constexpr (CC / 2 == 6) truth = f.sf() != f.of();
  if constexpr (CC / 2 == 7) truth = f.zf() || f.sf() != f.of();
  return truth != (CC % 2 != 0);
}

}  // namespace vpmu::exec
