#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "uarch/core_clock.hpp"
#include "uarch/state.hpp"

namespace vpmu::uarch {

/// Lines that are on their way to a core's L1D or L2, with a clock. A transfer is forgotten when another line takes its
/// place here; then its line is taken to be there.
class LineTransfers {
 public:
  struct Transfer {
    std::uint64_t line{~0ULL};
    std::uint64_t ready{};      ///< When the line arrives.
    std::uint64_t stored{};     ///< Its bytes for which stores of `stored_by` wait in the store buffer.
    std::uint32_t number{};     ///< They are numbered in the order in which they begin, from 1.
    std::uint8_t to_l1{};       ///< 1: to the L1D, 0: to the L2 alone.
    std::uint8_t prefetched{};  ///< Prefetched: a prefetch into the L1D has asked for it.
    std::uint8_t level{};       ///< HitLevel: where it comes from.
    std::uint8_t stored_by{};   ///< The thread that stored to it last.
    /// Whether the store buffer has all of these bytes for this thread.
    [[nodiscard]] bool holds(std::uint64_t bytes, unsigned thread) const {
      return bytes != 0 && stored_by == thread && (bytes & ~stored) == 0;
    }
  };

  [[nodiscard]] std::uint64_t now() const { return now_; }
  /// `settles`: what began since the last call may have begun as late as now.
  void advance(std::uint64_t cycles, bool settles) {
    now_ += cycles;
    if (settles && cycles != 0 && settled_ != last_) settle(cycles);
  }
  /// A line begins its way, which takes so many cycles.
  const Transfer& begin(std::uint64_t line, HitLevel level, std::uint32_t cycles, bool to_l1) {
    if (now_ >= last_ready_) marks_ = 0;
    marks_ |= mark(line);
    Transfer& at = transfers_[place(line)];
    places_[++last_ % places_.size()] = static_cast<std::uint8_t>(place(line));
    at = {.line = line,
          .ready = now_ + cycles,
          .number = last_,
          .to_l1 = static_cast<std::uint8_t>(to_l1 ? 1 : 0),
          .level = static_cast<std::uint8_t>(level)};
    last_ready_ = std::max(last_ready_, at.ready);
    return at;
  }
  /// That of the line, if it is still on its way; else null.
  [[nodiscard]] const Transfer* find(std::uint64_t line) const {
    if (now_ >= last_ready_ || (marks_ & mark(line)) == 0) [[likely]]
      return nullptr;
    const Transfer& at = transfers_[place(line)];
    return at.line == line && at.ready > now_ ? &at : nullptr;
  }
  /// Such a prefetch has asked for the line.
  void mark_prefetched(std::uint64_t line, Prefetched by) {
    if (Transfer& at = transfers_[place(line)]; at.line == line) at.prefetched = static_cast<std::uint8_t>(by);
  }
  /// A store to a line that is on its way: to these of its bytes.
  void store(std::uint64_t line, std::uint64_t bytes, unsigned thread) {
    Transfer& at = transfers_[place(line)];
    if (at.line != line) return;
    if (at.stored_by != thread) at.stored = 0;
    at.stored |= bytes;
    at.stored_by = static_cast<std::uint8_t>(thread);
  }
  /// The line is in no cache any more: nobody waits for it.
  void forget(std::uint64_t line) {
    if (Transfer& at = transfers_[place(line)]; at.line == line) at.line = Transfer{}.line;
  }
  void forget_all() { transfers_.fill({}); }
  /// The number of a transfer for the clock; 0 if it has forgotten that one.
  [[nodiscard]] std::uint32_t name_of(const Transfer& t) const {
    return last_ - t.number < Transfers::kept ? Transfers::name(t.number) : 0;
  }
  void visit_state(const StateVisitor& visit);

 private:
  static constexpr std::size_t count = 256;
  static constexpr std::size_t place(std::uint64_t line) { return (line ^ line >> 8 ^ line >> 16) % count; }
  static constexpr std::uint64_t mark(std::uint64_t line) { return std::uint64_t{1} << (line % 64); }
  void settle(std::uint64_t cycles);

  std::array<Transfer, count> transfers_{};
  std::array<std::uint8_t, Transfers::kept> places_{};  ///< By number.
  std::uint64_t now_{};
  std::uint64_t marks_{};             ///< mark() of all lines that began while one was on its way.
  std::uint64_t last_ready_{};        ///< When all have arrived.
  std::uint32_t last_{}, settled_{};  ///< Numbers.
};

}  // namespace vpmu::uarch
