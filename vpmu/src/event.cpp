#include "vpmu/event.hpp"

#include <algorithm>

#include "events/validate.hpp"
#include "vpmu/generation.hpp"

namespace vpmu {
namespace {

/// The ability of an event that has both rows: `yes` wins over `only`, `only` over `disputed`, and any of them over
/// `no`.
PebsAbility widest(PebsAbility a, PebsAbility b) {
  if (a == PebsAbility::no) return b;
  return b == PebsAbility::no ? a : std::min(a, b);
}
static_assert(PebsAbility::yes < PebsAbility::only && PebsAbility::only < PebsAbility::disputed);

}  // namespace

EventClass classify(const GenerationDesc& generation, const EventSpec& spec) {
  if (spec.code == 0) return {};
  const std::span<const EventDesc> rows = events::rows_of(generation.events, spec.code, spec.umask);
  if (rows.empty()) return {};
  EventClass result{.counts = rows.front().counts};
  for (const EventDesc& row : rows) {
    result.pebs = widest(result.pebs, row.pebs);
    result.data_la |= row.data_la;
    result.l1_hit_indication |= row.l1_hit_indication;
  }
  return result;
}

const EventDesc* find_event(const GenerationDesc& generation, std::string_view name) {
  const auto row = std::ranges::find(generation.events, name, &EventDesc::name);
  return row == generation.events.end() ? nullptr : &*row;
}

}  // namespace vpmu
