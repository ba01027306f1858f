#pragma once
#include <cstdint>

#include "vpmu/event.hpp"

namespace vpmu {

/// Applies CMASK, INV and EDGE to an event, cycle by cycle: rule C4, SDM 3B 18.2.1.1. A small value, cheap to copy.
struct CycleCondition {
  std::uint64_t open{};  ///< Events in the cycle that has not ended.
  bool held{};           ///< The condition held in the last cycle for which it is decided.

  /// Whether the select counts per cycle; otherwise each event counts. INV alone does nothing.
  [[nodiscard]] static bool is_asked(const EventSpec& select) { return select.cmask != 0 || select.edge; }

  /// Before this retirement `cycles` cycles end; its `events` belong to the cycle that is then open. Returns what the
  /// counter counts.
  std::uint64_t retire(const EventSpec& select, std::uint64_t events, std::uint64_t cycles);
  /// The same for `count` retirements, one per cycle and with `events` events each.
  std::uint64_t retire_many(const EventSpec& select, std::uint64_t events, std::uint64_t count);
  /// The same for an event that happens once in every cycle, for any number of cycles: the condition is then the same
  /// in all of them.
  std::uint64_t tick(const EventSpec& select, std::uint64_t cycles);
  /// Cycles at a privilege level that the counter filters out: they end its open cycle, and in them the condition does
  /// not hold. That makes CPU_CLK_UNHALTED.RING0_TRANS (EDGE, OS only) count transitions.
  void pass(const EventSpec& select, std::uint64_t cycles);

  friend bool operator==(const CycleCondition&, const CycleCondition&) = default;
};

}  // namespace vpmu
