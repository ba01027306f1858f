#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "uarch/state.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::uarch {

/// Lines that a prefetcher asks for, in this order.
class PrefetchedLines {
 public:
  static constexpr unsigned max = 5;
  void add(std::uint64_t line) {
    if (count_ < max) lines_[count_++] = line;
  }
  [[nodiscard]] std::span<const std::uint64_t> all() const& { return std::span{lines_}.first(count_); }
  std::span<const std::uint64_t> all() const&& = delete;  // the lines go with it

 private:
  std::array<std::uint64_t, max> lines_{};
  unsigned count_{};
};

/// The hardware prefetchers of a core. 248966, chapter 2, data prefetching. They stay in the page of 4 KiB.
///
/// - The streamer sees what misses the L1. In a page where such lines follow each other, upwards or downwards, it
///   brings those ahead into the L2: at most 20 ahead, four at a time. Intel says two for each look-up in the L2.
/// - The adjacent-line prefetcher completes pairs of lines in a page that the streamer follows, and in no other.
/// - The next-line prefetcher brings the line behind (before) one that loads go through upwards (downwards) into the
///   L1, at the fourth load of it.
///
/// No manual has these three rules: four at a time, only such pages, the fourth load. They were chosen because measured
/// chains of loads (InstLatX64) agree with them on all generations; the prefetcher by instruction is not modelled.
class Prefetchers {
 public:
  /// Those of reg::misc_feature_control; the others work.
  void turn_off(std::uint8_t which) { off_ = which; }

  /// A line missed the L1. What the L2 is to have, if it lacks it.
  PrefetchedLines missed_l1(std::uint64_t line);
  /// The L1 gets the line for an access at this offset.
  void filled(std::uint64_t line, unsigned offset) {
    watched_[line % watched_.size()] = {.line = line, .accesses = 1, .first = offset};
  }
  /// The L1 gets the line that accessed() has returned.
  void expect(std::uint64_t line) { watched_[line % watched_.size()] = {.line = line}; }
  /// An access hits the L1, at this offset of the line. Returns the line that the L1 is to have, if it lacks it.
  /// Changes nothing unless watches().
  std::optional<std::uint64_t> accessed(std::uint64_t line, unsigned offset);
  /// Whether a few more accesses to the line make accessed() return one.
  [[nodiscard]] bool watches(std::uint64_t line) const {
    const Watched& w = watched_[line % watched_.size()];
    return w.line == line && w.accesses < trigger;
  }
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr unsigned sets = 8, ways = 4;
  static constexpr int lines_of_page = 64, max_ahead = 20, requests = 4;
  static constexpr std::uint32_t trigger = 4;
  struct Stream {
    std::uint64_t page{~0ULL};
    std::int32_t last{};       ///< The line that missed last.
    std::int32_t next{};       ///< Not yet prefetched.
    std::int32_t direction{};  ///< 1, -1; 0: not known yet.
    std::int32_t reserved{};
  };
  struct Watched {
    std::uint64_t line{~0ULL};
    std::uint32_t accesses{};
    std::uint32_t first{};  ///< Offset of the first of them.
  };

  std::uint8_t off_{};
  std::array<std::array<Stream, ways>, sets> streams_{};  ///< Of each set the latest first.
  std::array<Watched, 4> watched_{};
};

}  // namespace vpmu::uarch
