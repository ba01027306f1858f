#include "tables/event_gaps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sources/delivery.hpp"
#include "support/assert.hpp"
#include "tables/event_encoding.hpp"

namespace vmm::tool {
namespace {

struct Reason {
  std::string_view part_of_name;
  std::string_view text;
};

constexpr std::string_view other_cores = "the model of the caches is one core's: nothing is asked of others";
constexpr std::array reasons{
    Reason{"XSNP_MISS", other_cores},
    Reason{"XSNP_HIT", other_cores},
    Reason{"OTHER_CORE_L2_HIT", other_cores},
    Reason{"LOCAL_HITM", other_cores},
    Reason{"FP_ASSIST", "which operations need the help of microcode is not known of those that this host's CPU runs"},
    Reason{"LATENCY_GE_", "in the model no bubble is that long"},
};

std::string_view reason_for(std::string_view name) {
  const auto* const row = std::ranges::find_if(
      reasons, [name](const Reason& r) { return name.find(r.part_of_name) != std::string_view::npos; });
  return row == reasons.end() ? std::string_view{} : row->text;
}

bool is_precise(const vpmu::EventDesc& event) { return event.pebs != vpmu::PebsAbility::no; }

}  // namespace

std::vector<EventGap> event_gaps(const vpmu::GenerationDesc& generation) {
  const DeliveryRule deliver = delivery_rule("exact");
  VMM_ASSERT(deliver != nullptr);
  std::vector<EventGap> gaps;
  for (const vpmu::EventDesc& e : generation.events)
    if (is_precise(e) && deliver(generation, e).delivery == Delivery::none)
      gaps.push_back({.event = &e, .reason = reason_for(e.name)});
  return gaps;
}

std::size_t precise_events(const vpmu::GenerationDesc& generation) {
  return static_cast<std::size_t>(std::ranges::count_if(generation.events, is_precise));
}

std::string list_gaps(const std::vector<const vpmu::GenerationDesc*>& generations) {
  constexpr double percent = 100.0;
  std::string text;
  for (const vpmu::GenerationDesc* g : generations) {
    const auto gaps = event_gaps(*g);
    const std::size_t all = precise_events(*g);
    text += fmt::format("{}: {} of {} precise events are not delivered, {:.1f} %\n", g->name, gaps.size(), all,
                        percent * static_cast<double>(gaps.size()) / static_cast<double>(all));
    for (const EventGap& gap : gaps)
      text += fmt::format("  {:<44} {:<9} {}\n", gap.event->name, raw_encoding(*gap.event), gap.reason);
  }
  return text;
}

}  // namespace vmm::tool
