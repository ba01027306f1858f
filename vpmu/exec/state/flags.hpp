#pragma once
#include <bit>
#include <concepts>
#include <cstdint>

#include "vpmu/x86.hpp"

namespace vpmu::exec {

/// Positions of the status flags in RFLAGS. SDM 1 3.4.3.
/// The status flags, kept as the operands that they follow from: most are overwritten before anyone reads them.
///
/// An op that sets flags stores its operands and how the flags follow from them; a reader computes the flags. After a
/// comparison, by far the most frequent case, conditions are told from the operands directly.
class LazyFlags {
 public:
  /// The six flags at their places in RFLAGS.
  [[nodiscard]] std::uint64_t bits() const;
  void set_bits(std::uint64_t bits) { set(How::bits, 0, bits & x86::rflags::status, 0); }
  [[nodiscard]] bool cf() const { return x86::rflags::CF::test(bits()); }
  [[nodiscard]] bool zf() const { return x86::rflags::ZF::test(bits()); }

  /// Of a - b.
  template <std::unsigned_integral T>
  void set_sub(T a, T b) {
    set(How::sub, shift<T>, extend(a), extend(b));
  }
  template <std::unsigned_integral T>
  void set_logic(T result) {
    set_sub(result, T{0});
  }
  template <std::unsigned_integral T>
  void set_add(T a, T b) {
    set(How::add, shift<T>, extend(a), extend(b));
  }
  template <std::unsigned_integral T>
  void set_inc(T result, bool carry) {
    set(How::inc, shift<T>, extend(result), carry ? 1 : 0);
  }
  template <std::unsigned_integral T>
  void set_dec(T result, bool carry) {
    set(How::dec, shift<T>, extend(result), carry ? 1 : 0);
  }
  /// SF, ZF and PF of the result; AF is 0.
  template <std::unsigned_integral T>
  void set_shift(T result, bool carry, bool overflow) {
    set(How::given, shift<T>, extend(result), (carry ? 1U : 0U) | (overflow ? 2U : 0U));
  }
  /// `carries`: the carry out of each bit of the operation that gave `result`.
  template <std::unsigned_integral T>
  void set_carries(T result, T carries) {
    const std::uint64_t top = std::uint64_t{carries} << shift<T>;
    set_shift(result, (top >> 63) != 0, ((top ^ top << 1) >> 63) != 0);
    set_bits(bits() | ((carries & 1U << 3) != 0 ? x86::rflags::AF::mask : 0));
  }
  /// Changes CF and OF alone.
  void set_cf_of(bool carry, bool overflow) {
    set_bits((bits() & ~(x86::rflags::CF::mask | x86::rflags::OF::mask)) | (carry ? x86::rflags::CF::mask : 0) |
             (overflow ? x86::rflags::OF::mask : 0));
  }
  void set_cf(bool carry) { set_bits((bits() & ~x86::rflags::CF::mask) | (carry ? x86::rflags::CF::mask : 0)); }
  void set_zf(bool zero) { set_bits((bits() & ~x86::rflags::ZF::mask) | (zero ? x86::rflags::ZF::mask : 0)); }

  /// Whether holds() can be called at once; else only after materialize().
  [[nodiscard]] bool is_handy() const { return how_ <= How::bits; }
  void materialize() { set_bits(bits()); }
  /// One of the sixteen conditions of Jcc, SETcc and CMOVcc, by the low four bits of their opcodes. SDM 1 appendix B.
  /// Only if is_handy().
  template <unsigned CC>
  [[nodiscard]] bool holds() const {
    if (how_ == How::sub) [[likely]]
      return after_sub<CC>(a_, b_, shift_);
    return after_bits<CC>(a_);
  }
  /// Whether CF can be told at once, for instructions that leave it as it is.
  [[nodiscard]] bool knows_cf() const { return how_ <= How::dec; }
  [[nodiscard]] bool known_cf() const {
    if (how_ == How::sub) return a_ < b_;
    if (how_ == How::add) return (a_ + b_) << shift_ < a_ << shift_;
    return ((how_ == How::bits ? a_ : b_) & 1) != 0;
  }

  /// The condition after a comparison of two sign-extended values; `shift` takes their uppermost bit to bit 63.
  template <unsigned CC>
  static bool after_sub(std::uint64_t a, std::uint64_t b, unsigned shift) {
    const auto sa = static_cast<std::int64_t>(a);
    const auto sb = static_cast<std::int64_t>(b);
    const std::uint64_t difference = (a - b) << shift;
    bool truth{};
    if constexpr (CC / 2 == 0) truth = (((a << shift ^ b << shift) & (a << shift ^ difference)) >> 63) != 0;
    if constexpr (CC / 2 == 1) truth = a < b;
    if constexpr (CC / 2 == 2) truth = a == b;
    if constexpr (CC / 2 == 3) truth = a <= b;
    if constexpr (CC / 2 == 4) truth = (difference >> 63) != 0;
    if constexpr (CC / 2 == 5) truth = (std::popcount((a - b) & 0xFFU) & 1) == 0;
    if constexpr (CC / 2 == 6) truth = sa < sb;
    if constexpr (CC / 2 == 7) truth = sa <= sb;
    return truth != (CC % 2 != 0);
  }
  template <unsigned CC>
  static bool after_bits(std::uint64_t f) {
    const bool differ = ((f >> 7 ^ f >> 11) & 1) != 0;  // SF and OF
    bool truth{};
    if constexpr (CC / 2 == 0) truth = x86::rflags::OF::test(f);
    if constexpr (CC / 2 == 1) truth = x86::rflags::CF::test(f);
    if constexpr (CC / 2 == 2) truth = x86::rflags::ZF::test(f);
    if constexpr (CC / 2 == 3) truth = (f & (x86::rflags::CF::mask | x86::rflags::ZF::mask)) != 0;
    if constexpr (CC / 2 == 4) truth = x86::rflags::SF::test(f);
    if constexpr (CC / 2 == 5) truth = x86::rflags::PF::test(f);
    if constexpr (CC / 2 == 6) truth = differ;
    if constexpr (CC / 2 == 7) truth = x86::rflags::ZF::test(f) || differ;
    return truth != (CC % 2 != 0);
  }

  template <class T>
  static std::uint64_t extend(T value) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::make_signed_t<T>>(value)));
  }
  template <class T>
  static constexpr std::uint32_t shift = 64 - 8 * sizeof(T);

 private:
  /// How flags follow from a_ and b_. The order is that of is_handy() and knows_cf().
  enum class How : std::uint32_t {
    sub,   ///< Of a - b.
    bits,  ///< a holds them.
    add,   ///< Of a + b.
    inc,   ///< a is the result, b CF.
    dec,
    given,  ///< a is the result, b CF and OF.
  };
  void set(How how, std::uint32_t shift_of, std::uint64_t a, std::uint64_t b) {
    a_ = a;
    b_ = b;
    how_ = how;
    shift_ = shift_of;
  }

  std::uint64_t a_{}, b_{};  ///< Sign-extended.
  How how_{How::bits};
  std::uint32_t shift_{};  ///< By which the uppermost bit of an operand comes to bit 63.
};

}  // namespace vpmu::exec
