#include "stat/events.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sources/delivery.hpp"
#include "stat/event_list.hpp"
#include "stat/kernel_events.hpp"
#include "stat/task_events.hpp"
#include "tables/event_encoding.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_chosen_events = 256;

struct Software {
  std::string_view name;
  std::variant<std::monostate, TaskEvent, SoftwareEvent> beside{};
};

/// Software events: the guest's kernel counts them, whatever the source.
constexpr std::array<Software, 12> software{{{"page-faults"},
                                             {"faults"},
                                             {"minor-faults"},
                                             {"major-faults"},
                                             {"alignment-faults"},
                                             {"emulation-faults"},
                                             {"context-switches", SoftwareEvent::context_switches},
                                             {"cs", SoftwareEvent::context_switches},
                                             {"cpu-migrations", SoftwareEvent::cpu_migrations},
                                             {"migrations", SoftwareEvent::cpu_migrations},
                                             {"task-clock", SoftwareEvent::task_clock},
                                             {"cpu-clock", SoftwareEvent::task_clock}}};

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

/// The event, and what perf calls its modifiers: behind a colon, or behind the second slash.
std::pair<std::string_view, std::string_view> split_modifier(std::string_view whole) {
  const std::size_t slash = whole.rfind('/');
  const std::size_t end = slash == std::string_view::npos ? whole.find(':') : slash + 1;
  if (end >= whole.size()) return {whole, {}};
  std::string_view modifier = whole.substr(end);
  if (modifier.starts_with(':')) modifier.remove_prefix(1);
  // A tracepoint has a colon, too.
  if (modifier.find_first_not_of("ukhGHpPIDWSebR") != std::string_view::npos) return {whole, {}};
  return {whole.substr(0, end), modifier};
}

StatEvent choose(std::string_view whole, const vpmu::GenerationDesc& generation, const ChangedRule& deliver) {
  const auto [name, modifier] = split_modifier(whole);
  StatEvent event{.name = std::string{whole}, .perf = std::string{whole}, .quality = "unknown", .beside = {}};
  event.has_own_counter = name == "instructions" && modifier == "u";
  const auto is = [&event, &generation, &deliver, level = modifier](const vpmu::EventDesc& row) {
    event.quality = quality_of(&row, generation, deliver);
    if (const auto counted = task_event(row, level)) event.beside = *counted;
  };
  if (const auto* const found = std::ranges::find(software, name, &Software::name); found != software.end()) {
    event.quality = "counted by the guest's kernel";
    // The guest's kernel has no levels for them either.
    event.beside = found->beside;
    return event;
  }
  if (const auto known = find_kernel_event(generation, name)) {
    is(row_of(*known, generation));
    return event;
  }
  if (const auto select = read_select(generation, name)) {
    is(*select);
    return event;
  }
  using vpmu::Counts;
  const vpmu::EventDesc* const row = name == "loads"    ? find_counts(generation, Counts::loads, Counts::load_uops)
                                     : name == "stores" ? find_counts(generation, Counts::stores, Counts::store_uops)
                                                        : find_name(generation, name);
  if (row == nullptr) return event;
  if (row->code != 0) event.perf = with_modifier(*row, modifier);
  is(*row);
  return event;
}

/// Whether perf in the guest may know what no table of ours has: a tracepoint, another PMU's event, one of perf's own.
bool may_be_known_to_perf(std::string_view name) {
  constexpr std::array perfs_own{"duration_time", "user_time", "system_time", "cgroup-switches", "bpf-output", "dummy"};
  return name.find_first_of("/:") != std::string_view::npos || std::ranges::find(perfs_own, name) != perfs_own.end();
}

Failure unknown_event(const std::string& name, const vpmu::GenerationDesc& generation) {
  const auto similar = similar_names(name, generation);
  return usage_error(
      fmt::format("{} has no event {}", generation.name, printable(name)),
      similar.empty() ? "see `vpmu events`" : fmt::format("do you mean {}?", fmt::join(similar, " or ")));
}

}  // namespace

bool is_delivered(std::string_view quality) { return !quality.starts_with("not counted"); }

Result<std::vector<StatEvent>> choose_events(std::string_view list, const vpmu::GenerationDesc& generation,
                                             std::string_view source, TimeModel time,
                                             const vpmu::uarch::ProfileChanges& changes) {
  const ChangedRule deliver = delivery_rule(source, time, changes);
  VMM_ASSIGN(const auto names, split_event_list(list, generation));
  if (names.size() > max_chosen_events)
    return usage_error(fmt::format("{} events are given, more than {}", names.size(), max_chosen_events),
                       "count them in several runs");
  std::vector<StatEvent> events;
  for (const std::string& name : names) {
    if (std::ranges::find(events, name, &StatEvent::name) != events.end())
      return usage_error(fmt::format("the event {} is given twice", name), "give each once");
    const StatEvent& event = events.emplace_back(choose(name, generation, deliver));
    if (event.quality == "unknown" && !may_be_known_to_perf(split_modifier(name).first))
      return unknown_event(name, generation);
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
