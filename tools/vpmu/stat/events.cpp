#include "stat/events.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "sources/delivery.hpp"
#include "stat/kernel_events.hpp"
#include "tables/event_encoding.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_chosen_events = 64;
constexpr std::size_t max_name_length = 256;

/// Software events: the guest's kernel counts them, whatever the source.
constexpr std::array software{"page-faults",      "faults",    "minor-faults",    "major-faults",
                              "context-switches", "cs",        "cpu-migrations",  "alignment-faults",
                              "task-clock",       "cpu-clock", "emulation-faults"};

std::string quality_of(const vpmu::EventDesc* event, const vpmu::GenerationDesc& generation,
                       const ChangedRule& deliver) {
  if (event == nullptr || deliver == nullptr) return "unknown";
  const EventDelivery delivery = deliver(generation, *event);
  const std::string_view name = to_string(delivery.delivery);
  return delivery.basis.empty() ? std::string{name} : fmt::format("{}: {}", name, delivery.basis);
}

/// perf writes the names in small letters, the manual's tables in capitals.
const vpmu::EventDesc* find_name(const vpmu::GenerationDesc& generation, std::string_view name) {
  const auto capital = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; };
  std::string capitals{name};
  std::ranges::transform(capitals, capitals.begin(), capital);
  return vpmu::find_event(generation, capitals);
}

/// All loads or all stores, whatever the generation calls them: by instruction, or by micro-operation. Not a row that
/// has a meaning only with PEBS, as Sandy Bridge's PRECISE_STORE: perf cannot count it.
const vpmu::EventDesc* find_counts(const vpmu::GenerationDesc& generation, vpmu::Counts counts, vpmu::Counts uops) {
  const auto row = std::ranges::find_if(generation.events, [counts, uops](const vpmu::EventDesc& e) {
    return (e.counts == counts || e.counts == uops) && e.code != 0 && e.msr_index == 0 && e.cmask == 0 && !e.inv &&
           !e.edge && !e.any && e.pebs != vpmu::PebsAbility::only;
  });
  return row == generation.events.end() ? nullptr : &*row;
}

std::string with_modifier(const vpmu::EventDesc& event, std::string_view modifier) {
  const std::string perf = perf_syntax(event);
  if (perf.find('/') == std::string::npos) return fmt::format("{}{}{}", perf, modifier.empty() ? "" : ":", modifier);
  // After the slash, perf takes modifiers without a colon.
  return perf + std::string{modifier};
}

StatEvent choose(std::string_view whole, const vpmu::GenerationDesc& generation, const ChangedRule& deliver) {
  const std::size_t colon = whole.find('/') == std::string_view::npos ? whole.find(':') : std::string_view::npos;
  const std::string_view name = whole.substr(0, colon);
  const std::string_view modifier = colon == std::string_view::npos ? std::string_view{} : whole.substr(colon + 1);
  StatEvent event{.name = std::string{whole}, .perf = std::string{whole}, .quality = "unknown"};
  event.has_own_counter = name == "instructions" && modifier == "u";
  if (std::ranges::find(software, name) != software.end()) {
    event.quality = "counted by the guest's kernel";
    return event;
  }
  if (const auto known = find_kernel_event(generation, name)) {
    const vpmu::EventDesc row = row_of(*known, generation);
    event.quality = quality_of(&row, generation, deliver);
    return event;
  }
  if (const auto select = read_select(generation, name)) {
    event.quality = quality_of(&*select, generation, deliver);
    return event;
  }
  using vpmu::Counts;
  const vpmu::EventDesc* const row = name == "loads"    ? find_counts(generation, Counts::loads, Counts::load_uops)
                                     : name == "stores" ? find_counts(generation, Counts::stores, Counts::store_uops)
                                                        : find_name(generation, name);
  if (row != nullptr && row->code != 0) event.perf = with_modifier(*row, modifier);
  event.quality = quality_of(row, generation, deliver);
  return event;
}

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> names;
  bool in_slashes = false;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    if (at < list.size() && list[at] == '/') in_slashes = !in_slashes;
    if (at < list.size() && (list[at] != ',' || in_slashes)) continue;
    names.push_back(list.substr(start, at - start));
    start = at + 1;
  }
  return names;
}

}  // namespace

bool is_delivered(std::string_view quality) { return !quality.starts_with("not counted"); }

Result<std::vector<StatEvent>> choose_events(std::string_view list, const vpmu::GenerationDesc& generation,
                                             std::string_view source, TimeModel time,
                                             const vpmu::uarch::ProfileChanges& changes) {
  const ChangedRule deliver = delivery_rule(source, time, changes);
  constexpr const char* advice = "give names as `perf list` or `vpmu events` has them, with commas between them";
  std::vector<StatEvent> events;
  for (const std::string_view name : split(list)) {
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7F && c != '{' && c != '}'; };
    if (name.empty() || name.size() > max_name_length || !std::ranges::all_of(name, is_plain))
      return usage_error(
          fmt::format("\"{}\" is not the name of an event", printable(std::string{name.substr(0, max_name_length)})),
          advice);
    if (std::ranges::find(events, name, &StatEvent::name) != events.end())
      return usage_error(fmt::format("the event {} is given twice", name), advice);
    if (events.size() == max_chosen_events)
      return usage_error(fmt::format("more than {} events are given", max_chosen_events), advice);
    events.push_back(choose(name, generation, deliver));
  }
  return events;
}

std::vector<std::vector<StatEvent>> split_into_passes(std::span<const StatEvent> events,
                                                      const vpmu::GenerationDesc& generation) {
  std::vector<std::vector<StatEvent>> passes;
  unsigned left = 0;
  for (const StatEvent& event : events) {
    if (passes.empty() || (left == 0 && !event.has_own_counter)) {
      passes.emplace_back();
      left = generation.gp_counters;
    }
    if (!event.has_own_counter) --left;
    passes.back().push_back(event);
  }
  return passes;
}

}  // namespace vmm::tool
