#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>

#include "timing/timed_block.hpp"

namespace vpmu::timing {

/// A few buffers, each of which is taken for a time. Who takes them comes in the program's order, and begins in any: so
/// what counts are the others that have one meanwhile. Its bytes are part of the saved state.
struct Buffers {
  static constexpr std::size_t max = 32;
  std::array<Tick, max> begins{}, ends{};  ///< Of the last that were taken.
  Tick forgotten{};  ///< When the last of those ended that are known no longer: no other comes before that.

  /// From when on, `begin` at the earliest, one of so many (fewer than max) is free until `end(begin)`.
  template <class End>
  [[nodiscard]] Tick free_from(Tick begin, unsigned count, const End& end) const {
    begin = std::max(begin, forgotten);
    // Mostly there are enough, whenever the others begin. Without branches, so that the compiler compares several at
    // once.
    unsigned later = 0;
    for (std::size_t n = 0; n < max; ++n) later += ends[n] > begin ? 1 : 0;
    if (later < count) return begin;
    for (;;) {
      const Others others = between(begin, end(begin));
      if (others.count < count) return begin;
      begin = others.first_end;
    }
  }
  void take(Tick begin, Tick end) {
    Tick first = ends[0];
    for (const Tick other : ends) first = std::min(first, other);
    std::size_t oldest = 0;
    while (ends[oldest] != first) ++oldest;
    forgotten = std::max(forgotten, first);
    begins[oldest] = begin;
    ends[oldest] = end;
  }

  struct Others {
    unsigned count{};
    Tick first_end{};
  };
  /// Who has one between these times. Again without branches.
  [[nodiscard]] Others between(Tick begin, Tick end) const {
    Ticks4 count{}, first = Ticks4{} + std::numeric_limits<Tick>::max();
    for (std::size_t n = 0; n < max; n += 4) {
      Ticks4 from, until;
      std::memcpy(&from, &begins[n], sizeof from);
      std::memcpy(&until, &ends[n], sizeof until);
      const Ticks4 is_taken = (until > begin) & (from < end);
      count -= is_taken;
      first = (is_taken & (until < first)) != 0 ? until : first;
    }
    Others others{.first_end = std::numeric_limits<Tick>::max()};
    for (std::size_t lane = 0; lane < 4; ++lane) {
      others.count += static_cast<unsigned>(count[lane]);
      others.first_end = std::min(others.first_end, first[lane]);
    }
    return others;
  }
  template <class Change>
  void each_tick(const Change& change) {
    std::ranges::for_each(begins, change);
    std::ranges::for_each(ends, change);
    change(forgotten);
  }
};

}  // namespace vpmu::timing
