#pragma once
#include <bit>
#include <cstdint>

namespace vpmu {

/// A set of values of an enumeration, all of which are below 64. A plain word, cheap to copy.
template <class Enum>
class SetOf {
 public:
  /// None.
  constexpr SetOf() = default;
  /// These, and no others.
  template <class... Members>
  static constexpr SetOf of(Members... members) {
    SetOf set;
    set.bits_ = (bit_of(members) | ...);
    return set;
  }
  /// The first so many of the enumeration, fewer than 64.
  static constexpr SetOf first(unsigned count) {
    SetOf set;
    set.bits_ = (std::uint64_t{1} << count) - 1;
    return set;
  }
  /// Whether it is one of them.
  [[nodiscard]] constexpr bool has(Enum member) const { return (bits_ & bit_of(member)) != 0; }
  /// Whether there is none.
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// Whether all of the others are in this set.
  [[nodiscard]] constexpr bool contains(SetOf others) const { return (others.bits_ & ~bits_) == 0; }
  /// Calls f(Enum) for each.
  template <class F>
  constexpr void for_each(F f) const {
    for (std::uint64_t left = bits_; left != 0; left &= left - 1) f(static_cast<Enum>(std::countr_zero(left)));
  }
  /// The sum of what each has in `numbers`, an array by the enumeration's values.
  template <class Numbers>
  [[nodiscard]] constexpr std::uint64_t sum(const Numbers& numbers) const {
    std::uint64_t n = 0;
    for_each([&](Enum member) { n += numbers[static_cast<unsigned>(member)]; });
    return n;
  }
  /// Those that are not in the other set.
  [[nodiscard]] constexpr SetOf without(SetOf other) const {
    other.bits_ = bits_ & ~other.bits_;
    return other;
  }
  /// Those of either set.
  constexpr SetOf operator|(SetOf other) const {
    other.bits_ |= bits_;
    return other;
  }
  /// Adds those of another set.
  constexpr SetOf& operator|=(SetOf other) { return *this = *this | other; }
  friend bool operator==(const SetOf&, const SetOf&) = default;

 private:
  static constexpr std::uint64_t bit_of(Enum member) { return std::uint64_t{1} << static_cast<unsigned>(member); }
  std::uint64_t bits_{};
};

}  // namespace vpmu
