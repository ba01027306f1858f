#pragma once
#include <bit>
#include <cstdint>
#include <optional>

#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {

/// The most general-purpose counters that any generation has.
inline constexpr unsigned max_gp_counters = 8;
/// The most fixed counters.
inline constexpr unsigned max_fixed_counters = 3;
/// The most counters of both kinds together; CounterId::index() is less than this.
inline constexpr unsigned max_counters = max_gp_counters + max_fixed_counters;

/// One counter of a logical processor: PMCi or FIXED_CTRn. Ordered as the manual serves them: general-purpose first
/// (rule Q1).
class CounterId {
 public:
  constexpr CounterId() = default;
  /// IA32_PMCi, i < max_gp_counters.
  [[nodiscard]] static constexpr CounterId gp(unsigned i) { return CounterId{i}; }
  /// IA32_FIXED_CTRn, n < max_fixed_counters.
  [[nodiscard]] static constexpr CounterId fixed(unsigned n) { return CounterId{max_gp_counters + n}; }
  /// From a dense index 0 .. max_counters-1.
  [[nodiscard]] static constexpr CounterId from_index(unsigned index) { return CounterId{index}; }

  /// Whether it is a PMCi, and not a fixed counter.
  [[nodiscard]] constexpr bool is_gp() const { return index_ < max_gp_counters; }
  /// The manual's number: i of PMCi, n of FIXED_CTRn.
  [[nodiscard]] constexpr unsigned number() const { return is_gp() ? index_ : index_ - max_gp_counters; }
  /// Dense index in Q1 order.
  [[nodiscard]] constexpr unsigned index() const { return index_; }
  /// Bit position in GLOBAL_CTRL and GLOBAL_STATUS.
  [[nodiscard]] constexpr unsigned global_bit() const {
    return is_gp() ? number() : reg::global_status::fixed_shift + number();
  }
  friend constexpr auto operator<=>(const CounterId&, const CounterId&) = default;

 private:
  constexpr explicit CounterId(unsigned index) : index_{static_cast<std::uint8_t>(index)} {}
  std::uint8_t index_{};
};

/// Bit of RDPMC's ECX that chooses the fixed counters. SDM 2B RDPMC.
inline constexpr std::uint32_t rdpmc_fixed_counters = 1U << 30;

/// The counter that RDPMC with this ECX names, if any generation has it.
[[nodiscard]] constexpr std::optional<CounterId> rdpmc_counter(std::uint32_t ecx) {
  const std::uint32_t number = ecx & ~rdpmc_fixed_counters;
  const bool fixed = (ecx & rdpmc_fixed_counters) != 0;
  if (number >= (fixed ? max_fixed_counters : max_gp_counters)) return std::nullopt;
  return fixed ? CounterId::fixed(number) : CounterId::gp(number);
}

/// The counter that this MSR holds, by either of its addresses, if any generation has it.
[[nodiscard]] constexpr std::optional<CounterId> counter_at(MsrIndex index) {
  for (unsigned i = 0; i < max_gp_counters; ++i)
    if (index == msr::IA32_PMC0 + i || index == msr::IA32_A_PMC0 + i) return CounterId::gp(i);
  for (unsigned n = 0; n < max_fixed_counters; ++n)
    if (index == msr::IA32_FIXED_CTR0 + n) return CounterId::fixed(n);
  return std::nullopt;
}

/// A set of counters; iterates in Q1 order. A plain word, cheap to copy.
class CounterSet {
 public:
  constexpr CounterSet() = default;
  /// From a mask, in which bit i is the counter of dense index i.
  constexpr explicit CounterSet(std::uint16_t raw) : raw_{raw} {}
  /// Adds a counter; does nothing if the set has it already.
  constexpr void add(CounterId c) { raw_ = static_cast<std::uint16_t>(raw_ | bit(c.index())); }
  /// Removes a counter; does nothing if the set does not have it.
  constexpr void remove(CounterId c) { raw_ = static_cast<std::uint16_t>(raw_ & ~bit(c.index())); }
  /// Whether the set has the counter.
  [[nodiscard]] constexpr bool has(CounterId c) const { return (raw_ & bit(c.index())) != 0; }
  /// Whether the set has no counter.
  [[nodiscard]] constexpr bool empty() const { return raw_ == 0; }
  /// Number of counters in the set, 0 to max_counters.
  [[nodiscard]] constexpr unsigned size() const { return static_cast<unsigned>(std::popcount(raw_)); }
  /// The lowest in Q1 order. The set must not be empty.
  [[nodiscard]] constexpr CounterId first() const {
    return CounterId::from_index(static_cast<unsigned>(std::countr_zero(raw_)));
  }
  /// Bit i = the counter of dense index i.
  [[nodiscard]] constexpr std::uint16_t raw() const { return raw_; }
  /// The general-purpose part as bits 7:0.
  [[nodiscard]] constexpr std::uint64_t gp_bits() const { return raw_ & low_bits(max_gp_counters); }

  /// The counters that are in one of them, or both.
  friend constexpr CounterSet operator|(CounterSet a, CounterSet b) {
    return CounterSet{static_cast<std::uint16_t>(a.raw_ | b.raw_)};
  }
  /// The counters that are in both.
  friend constexpr CounterSet operator&(CounterSet a, CounterSet b) {
    return CounterSet{static_cast<std::uint16_t>(a.raw_ & b.raw_)};
  }
  /// The members of `a` that are not in `b`.
  friend constexpr CounterSet operator-(CounterSet a, CounterSet b) {
    return CounterSet{static_cast<std::uint16_t>(a.raw_ & ~b.raw_)};
  }
  friend constexpr bool operator==(CounterSet, CounterSet) = default;

  /// Iterates over a copy of the set, so the set may be changed meanwhile.
  class Iterator {
   public:
    /// At the lowest counter of `rest`, a set as raw() gives it; 0 is the end.
    constexpr explicit Iterator(std::uint16_t rest) : rest_{rest} {}
    /// The counter; not at the end.
    constexpr CounterId operator*() const { return CounterSet{rest_}.first(); }
    /// To the next in Q1 order.
    constexpr Iterator& operator++() {
      rest_ = static_cast<std::uint16_t>(rest_ & (rest_ - 1U));
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    std::uint16_t rest_;
  };
  /// The lowest in Q1 order, or end().
  [[nodiscard]] constexpr Iterator begin() const { return Iterator{raw_}; }
  /// Past the highest.
  [[nodiscard]] constexpr Iterator end() const { return Iterator{0}; }

 private:
  std::uint16_t raw_{};
};

}  // namespace vpmu
