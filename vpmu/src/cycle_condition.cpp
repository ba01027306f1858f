#include "vpmu/cycle_condition.hpp"

#include <algorithm>

namespace vpmu {
namespace {

/// Events that make a cycle count; EDGE without CMASK looks for any.
std::uint64_t threshold_of(const EventSpec& s) { return s.cmask == 0 ? 1 : s.cmask; }
/// INV does nothing without CMASK (rule C4).
bool is_inverted(const EventSpec& s) { return s.inv && s.cmask != 0; }

}  // namespace

// A cycle's count is final when the cycle ends, so INV adds there; without INV the cycle adds as soon as its count
// reaches CMASK.
std::uint64_t CycleCondition::retire(const EventSpec& s, std::uint64_t events, std::uint64_t cycles) {
  const std::uint64_t threshold = threshold_of(s);
  const bool inverted = is_inverted(s);
  std::uint64_t added = 0;
  const auto cycle_is = [&](bool holds, std::uint64_t many) {
    if (holds) added += s.edge ? static_cast<std::uint64_t>(!held) : many;
    held = holds;
  };
  if (cycles > 0) {
    if (inverted || open < threshold)
      cycle_is((open < threshold) == inverted, 1);   // one that reached CMASK has been added
    if (cycles > 1) cycle_is(inverted, cycles - 1);  // cycles without an event
    open = 0;
  }
  const bool reached_before = open >= threshold;
  open += events;
  if (!inverted && !reached_before && open >= threshold) cycle_is(true, 1);
  return added;
}

// After the second retirement the open cycle and the condition no longer change: each further one adds what the third
// one does.
std::uint64_t CycleCondition::retire_many(const EventSpec& s, std::uint64_t events, std::uint64_t count) {
  constexpr std::uint64_t until_steady = 3;
  std::uint64_t added = 0;
  std::uint64_t last = 0;
  for (std::uint64_t n = 0; n < std::min(count, until_steady); ++n) added += last = retire(s, events, 1);
  return count <= until_steady ? added : added + last * (count - until_steady);
}

std::uint64_t CycleCondition::tick(const EventSpec& s, std::uint64_t cycles) {
  if (cycles == 0) return 0;
  const bool holds = (threshold_of(s) <= 1) != is_inverted(s);
  const bool rises = holds && !held;
  held = holds;
  if (!holds) return 0;
  return s.edge ? static_cast<std::uint64_t>(rises) : cycles;
}

void CycleCondition::pass(const EventSpec& s, std::uint64_t cycles) {
  if (cycles == 0) return;
  if (is_inverted(s) || cycles > 1 || open < threshold_of(s)) held = false;
  open = 0;
}

}  // namespace vpmu
