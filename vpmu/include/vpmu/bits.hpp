#pragma once
#include <cstdint>

namespace vpmu {

/// A bit field of a 64-bit register in the manual's [Hi:Lo] spelling: `using CMASK = Bits<31, 24>;`.
/// All functions are constexpr and never fail; values wider than the field are cut to it.
template <unsigned Hi, unsigned Lo = Hi>
struct Bits {
  static_assert(Hi < 64 && Lo <= Hi);
  static constexpr unsigned high = Hi;
  static constexpr unsigned low = Lo;
  static constexpr unsigned width = Hi - Lo + 1;
  /// The field's ones, in place.
  static constexpr std::uint64_t mask = (width == 64 ? ~0ULL : ((1ULL << width) - 1)) << Lo;

  /// The field's value in `reg`, shifted down to bit 0.
  [[nodiscard]] static constexpr std::uint64_t get(std::uint64_t reg) { return (reg & mask) >> Lo; }
  /// True when any bit of the field is set in `reg`.
  [[nodiscard]] static constexpr bool test(std::uint64_t reg) { return (reg & mask) != 0; }
  /// `field` shifted into place, all other bits 0.
  [[nodiscard]] static constexpr std::uint64_t make(std::uint64_t field) { return (field << Lo) & mask; }
  /// `reg` with the field replaced.
  [[nodiscard]] static constexpr std::uint64_t set(std::uint64_t reg, std::uint64_t field) {
    return (reg & ~mask) | make(field);
  }
};

/// The single bit `n`.
[[nodiscard]] constexpr std::uint64_t bit(unsigned n) { return 1ULL << n; }

/// The lowest `n` bits set, n in 0..64.
[[nodiscard]] constexpr std::uint64_t low_bits(unsigned n) { return n >= 64 ? ~0ULL : (1ULL << n) - 1; }

}  // namespace vpmu
