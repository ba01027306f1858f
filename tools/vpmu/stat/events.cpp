#include "stat/events.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "sources/delivery.hpp"
#include "tables/event_encoding.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t most_events = 64;
constexpr std::size_t longest_name = 256;

/// An architectural event under the name that perf has for it. SDM 3B table 18-1.
struct PerfName {
  std::string_view name;
  std::uint8_t code, umask;
};
constexpr std::array perf_names{
    PerfName{"instructions", 0xC0, 0x00},     PerfName{"branches", 0xC4, 0x00},
    PerfName{"branch-instructions", 0xC4, 0}, PerfName{"branch-misses", 0xC5, 0x00},
    PerfName{"cache-misses", 0x2E, 0x41},     PerfName{"cache-references", 0x2E, 0x4F},
    PerfName{"cycles", 0x3C, 0x00},           PerfName{"cpu-cycles", 0x3C, 0x00},
    PerfName{"bus-cycles", 0x3C, 0x01},
};

/// Software events: the guest's kernel counts them, whatever the source.
constexpr std::array software{"page-faults",      "faults",    "minor-faults",    "major-faults",
                              "context-switches", "cs",        "cpu-migrations",  "alignment-faults",
                              "task-clock",       "cpu-clock", "emulation-faults"};

std::string quality_of(const vpmu::EventDesc* event, const vpmu::GenerationDesc& generation, std::string_view source) {
  const DeliveryRule deliver = delivery_rule(source);
  if (event == nullptr || deliver == nullptr) return "unknown";
  const EventDelivery delivery = deliver(generation, *event);
  const std::string_view name = to_string(delivery.delivery);
  return delivery.basis.empty() ? std::string{name} : fmt::format("{}: {}", name, delivery.basis);
}

/// The event with this code and umask, and no other condition.
const vpmu::EventDesc* find_code(const vpmu::GenerationDesc& generation, unsigned code, unsigned umask) {
  const auto row = std::ranges::find_if(generation.events, [code, umask](const vpmu::EventDesc& e) {
    return code != 0 && e.code == code && e.umask == umask && e.cmask == 0 && !e.inv && !e.edge && !e.any;
  });
  return row == generation.events.end() ? nullptr : &*row;
}

/// "r01c2": of a code and umask alone.
const vpmu::EventDesc* find_raw(const vpmu::GenerationDesc& generation, std::string_view name) {
  if (!name.starts_with('r')) return nullptr;
  unsigned raw{};
  constexpr int hexadecimal = 16;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), raw, hexadecimal);
  if (error != std::errc{} || end != name.data() + name.size() || raw > 0xFFFF) return nullptr;
  return find_code(generation, raw & 0xFFU, raw >> 8U);
}

/// perf writes the names in small letters, the manual's tables in capitals.
const vpmu::EventDesc* find_name(const vpmu::GenerationDesc& generation, std::string_view name) {
  const auto capital = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; };
  std::string capitals{name};
  std::ranges::transform(capitals, capitals.begin(), capital);
  return vpmu::find_event(generation, capitals);
}

/// All loads or all stores, whatever the generation calls them.
const vpmu::EventDesc* find_counts(const vpmu::GenerationDesc& generation, vpmu::Counts counts) {
  const auto row = std::ranges::find_if(generation.events, [counts](const vpmu::EventDesc& e) {
    return e.counts == counts && e.code != 0 && e.msr_index == 0 && e.cmask == 0 && !e.inv && !e.edge && !e.any;
  });
  return row == generation.events.end() ? nullptr : &*row;
}

std::string with_modifier(const vpmu::EventDesc& event, std::string_view modifier) {
  const std::string perf = perf_syntax(event);
  if (perf.find('/') == std::string::npos) return fmt::format("{}{}{}", perf, modifier.empty() ? "" : ":", modifier);
  // After the slash, perf takes modifiers without a colon.
  return perf + std::string{modifier};
}

StatEvent choose(std::string_view whole, const vpmu::GenerationDesc& generation, std::string_view source) {
  const std::size_t colon = whole.find('/') == std::string_view::npos ? whole.find(':') : std::string_view::npos;
  const std::string_view name = whole.substr(0, colon);
  const std::string_view modifier = colon == std::string_view::npos ? std::string_view{} : whole.substr(colon + 1);
  StatEvent event{.name = std::string{whole}, .perf = std::string{whole}, .quality = "unknown"};
  event.has_own_counter = name == "instructions" && modifier == "u";
  if (std::ranges::find(software, name) != software.end()) {
    event.quality = "counted by the guest's kernel";
    return event;
  }
  const auto* const known = std::ranges::find(perf_names, name, &PerfName::name);
  const vpmu::EventDesc* row =
      known != perf_names.end() ? find_code(generation, known->code, known->umask) : find_raw(generation, name);
  if (row == nullptr && name == "instructions") row = find_counts(generation, vpmu::Counts::instructions);
  if (row == nullptr) {
    if (name == "loads")
      row = find_counts(generation, vpmu::Counts::loads);
    else if (name == "stores")
      row = find_counts(generation, vpmu::Counts::stores);
    else
      row = find_name(generation, name);
    if (row != nullptr && row->code != 0) event.perf = with_modifier(*row, modifier);
  }
  event.quality = quality_of(row, generation, source);
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

bool is_delivered(std::string_view quality) { return !quality.starts_with("not at all"); }

Result<std::vector<StatEvent>> choose_events(std::string_view list, const vpmu::GenerationDesc& generation,
                                             std::string_view source) {
  constexpr const char* advice = "give names as `perf list` or `vpmu events` has them, with commas between them";
  std::vector<StatEvent> events;
  for (const std::string_view name : split(list)) {
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7F && c != '{' && c != '}'; };
    if (name.empty() || name.size() > longest_name || !std::ranges::all_of(name, is_plain))
      return usage_error(
          fmt::format("\"{}\" is not the name of an event", printable(std::string{name.substr(0, longest_name)})),
          advice);
    if (std::ranges::find(events, name, &StatEvent::name) != events.end())
      return usage_error(fmt::format("the event {} is given twice", name), advice);
    if (events.size() == most_events)
      return usage_error(fmt::format("more than {} events are given", most_events), advice);
    events.push_back(choose(name, generation, source));
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
