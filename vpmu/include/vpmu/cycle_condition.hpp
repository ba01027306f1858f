#pragma once
#include <cstdint>

#include "vpmu/event.hpp"

namespace vpmu {

/// What CMASK, INV and EDGE make of an event: rule C4, SDM 3B 18.2.1.1. The unit is a cycle. Small, to be copied.
struct CycleCondition {
  std::uint64_t open{};  ///< Events in the cycle that has not ended.
  bool held{};           ///< The condition held in the last cycle that has.

  /// Whether the select counts per cycle at all; else each event counts. INV alone does nothing.
  [[nodiscard]] static bool is_asked(const EventSpec& select) { return select.cmask != 0 || select.edge; }

  /// `cycles` cycles end with this retirement, its `events` fall into the one that is then open. Gives what the counter
  /// counts.
  std::uint64_t retire(const EventSpec& select, std::uint64_t events, std::uint64_t cycles);
  /// The same for `count` retirements of one cycle and `events` each.
  std::uint64_t retire_many(const EventSpec& select, std::uint64_t events, std::uint64_t count);
  /// The same of an event that happens once in every cycle, and for any number of them: the condition is the same in
  /// all.
  std::uint64_t tick(const EventSpec& select, std::uint64_t cycles);
  /// Cycles at a privilege level that the counter filters out: they end its open cycle, and in them the condition does
  /// not hold. That makes CPU_CLK_UNHALTED.RING0_TRANS (EDGE, OS only) count transitions.
  void pass(const EventSpec& select, std::uint64_t cycles);

  friend bool operator==(const CycleCondition&, const CycleCondition&) = default;
};

}  // namespace vpmu
