#include "tables/event_listing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/model.hpp"
#include "pmu/registry.hpp"
#include "sources/delivery.hpp"
#include "tables/event_encoding.hpp"
#include "tables/event_gaps.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {
namespace {

/// A column of the listing: a counting source on a class of hosts.
struct ListedSource {
  std::string_view name;
  DeliveryRule deliver;
};

using Sources = std::vector<ListedSource>;

std::string_view precision(const vpmu::EventDesc& event) {
  switch (event.pebs) {
    case vpmu::PebsAbility::no: return "no";
    case vpmu::PebsAbility::yes: return "yes";
    case vpmu::PebsAbility::only: return "only";
    case vpmu::PebsAbility::disputed: return "disputed";
  }
  return "";
}

/// "estimated, time on the vCPU".
std::string delivery_text(const EventDelivery& delivery) {
  const std::string_view name = to_string(delivery.delivery);
  return delivery.basis.empty() ? std::string{name} : fmt::format("{}, {}", name, delivery.basis);
}

using Events = std::vector<const vpmu::EventDesc*>;

/// Short enough for 100 columns, with the longest name of an event.
std::string_view short_word(Delivery delivery) {
  switch (delivery) {
    case Delivery::none: return "no";
    case Delivery::estimated: return "estimate";
    case Delivery::exact:
    case Delivery::nearest: break;
  }
  return to_string(delivery);
}

std::string text_listing(const vpmu::GenerationDesc& generation, const Events& events) {
  const DeliveryRule rule = delivery_rule("exact", TimeModel::pipeline);
  std::size_t raw_width = 0;
  for (const vpmu::EventDesc* const e : events) raw_width = std::max(raw_width, raw_encoding(*e).size());
  const auto row = [raw_width](std::string_view raw, std::string_view pebs, std::string_view count,
                               std::string_view name) {
    return fmt::format("{:<{}} {:<4} {:<8} {}\n", raw, raw_width, pebs, count, name);
  };
  std::string text = row("RAW", "PEBS", "COUNT", "EVENT");
  for (const vpmu::EventDesc* const e : events)
    text += row(raw_encoding(*e), e->pebs == vpmu::PebsAbility::disputed ? "yes" : precision(*e),
                short_word(rule(generation, *e).delivery), e->name);
  return text;
}

std::string wide_listing(const vpmu::GenerationDesc& generation, const Events& events, const Sources& sources) {
  constexpr std::string_view row = "{:<52} {:<9} {:<8} {:<8} ";
  constexpr std::string_view source_column = "{:<34} ";
  std::string text = fmt::format(row, "EVENT", "RAW", "PRECISE", "COUNTERS");
  for (const ListedSource& s : sources) text += fmt::format(source_column, fmt::format("SOURCE {}", s.name));
  text += "PERF\n";
  for (const vpmu::EventDesc* const e : events) {
    text += fmt::format(row, e->name, raw_encoding(*e), precision(*e), counter_list(*e));
    for (const ListedSource& s : sources) text += fmt::format(source_column, delivery_text(s.deliver(generation, *e)));
    text += perf_syntax(*e) + '\n';
  }
  return text;
}

constexpr std::string_view markdown_introduction = R"(# Events of {model}

Written by `vpmu events --model {model} --markdown`; `vpmu events --model {model} --wide` has all sources, and `vpmu events --gaps`
lists the precise events that the exact source does not deliver, with the reason. Event names and codes follow Intel's public perfmon event lists (Copyright (c) Intel
Corporation, BSD-3-Clause).

- **For perf**: `rUUEE` with umask UU and event EE, CMASK, INV, ANY and EDGE above them; the long form where an extra MSR goes with it.
- **Precise**: can trigger a PEBS record; `only` has no meaning without PEBS; `disputed`: Intel's event list says no, libpfm4 or Linux yes, and
  here it can.
- **Counters**: PMC0 to PMC7, of which 4 to 7 exist only without SMT; PEBS works on PMC0 to PMC3.
- **Source**: how that counting source delivers the event; the exact source with `--time pipeline`. *Estimated* from time is as good as the guest's clock. *Not counted*: the event can be
  programmed and reads 0. *Exact, always 0*: it counts what does not exist here, as transactions (no model reports TSX) or the memory
  of another package, and 0 is right.
  The perf source's events depend on the host. *Nearest*: the host's event that comes nearest is counted. *By the engine*: the host has no
  such event, so the guest runs in the exact source's engine while the event counts.
- `OFFCORE_RESPONSE` events also exist under code BBH with the MSR 1A7H; they are listed once.

)";

std::string markdown_listing(const vpmu::GenerationDesc& generation, const Events& events, const Sources& sources) {
  std::string text = fmt::format(markdown_introduction, fmt::arg("model", generation.name));
  std::string rule = "|---|---|---|---|";
  text += "| Event | For perf | Precise | Counters |";
  for (const ListedSource& s : sources) {
    text += fmt::format(" Source {} |", s.name);
    rule += "---|";
  }
  text += fmt::format("\n{}\n", rule);
  for (const vpmu::EventDesc* const e : events) {
    const bool is_raw_enough = e->msr_index == 0 && raw_encoding(*e).starts_with('r');
    text += fmt::format("| {} | `{}` | {} | {} |", e->name, is_raw_enough ? raw_encoding(*e) : perf_syntax(*e),
                        precision(*e), counter_list(*e));
    for (const ListedSource& s : sources) text += fmt::format(" {} |", delivery_text(s.deliver(generation, *e)));
    text += '\n';
  }
  return text;
}

nlohmann::ordered_json json_event(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& e,
                                  const Sources& sources) {
  nlohmann::ordered_json delivery = nlohmann::ordered_json::object();
  for (const ListedSource& s : sources) {
    const EventDelivery d = s.deliver(generation, e);
    delivery[std::string{s.name}] = {{"delivery", to_string(d.delivery)}, {"basis", d.basis}};
  }
  return {{"name", e.name},
          {"event", e.code},
          {"umask", e.umask},
          {"cmask", e.cmask},
          {"inv", e.inv},
          {"edge", e.edge},
          {"any", e.any},
          {"msr", e.msr_index},
          {"msr_value", e.msr_value},
          {"raw", raw_encoding(e)},
          {"perf", perf_syntax(e)},
          {"precise", precision(e)},
          {"counters", counter_list(e)},
          {"sample_after", e.sample_after},
          {"sources", std::move(delivery)}};
}

std::string json_listing(const vpmu::GenerationDesc& generation, const Events& events, const Sources& sources) {
  nlohmann::ordered_json listed = nlohmann::ordered_json::array();
  for (const vpmu::EventDesc* const e : events) listed.push_back(json_event(generation, *e, sources));
  const nlohmann::ordered_json listing = {{"model", generation.name}, {"events", std::move(listed)}};
  return listing.dump(1) + '\n';
}

/// A generation's name is also the name of a machine model; the other machine models have some generation's PMU.
Result<const vpmu::GenerationDesc*> chosen_model(std::string_view name) {
  if (const MachineModel* model = find_machine_model(name)) return &vpmu::describe(model->generation);
  std::string known;
  for (const MachineModel& m : all_machine_models()) known += fmt::format("{}{}", known.empty() ? "" : ", ", m.name);
  return usage_error(name.empty() ? "--model is required" : fmt::format("unknown model '{}'", printable(name)),
                     fmt::format("known models: {}", known));
}

Result<Sources> chosen_sources(std::string_view name) {
  Sources sources;
  for (const HostedRule& r : delivery_rules())
    if (name.empty() || name == r.source) sources.push_back({r.name, r.rule});
  if (!sources.empty()) return sources;
  std::string known;
  for (const SourceRow& row : all_sources()) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.traits.name);
  return usage_error(fmt::format("unknown source '{}'", printable(name)), fmt::format("known sources: {}", known));
}

std::string upper(std::string_view text) {
  std::string result{text};
  for (char& c : result)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return result;
}

Result<Events> chosen_events(const vpmu::GenerationDesc& generation, std::span<const std::string> words) {
  Events events;
  for (const vpmu::EventDesc& e : generation.events) {
    const auto is_in_name = [name = upper(e.name)](const std::string& word) {
      return name.find(upper(word)) != std::string::npos;
    };
    if (std::ranges::all_of(words, is_in_name)) events.push_back(&e);
  }
  if (!events.empty()) return events;
  return usage_error(fmt::format("no event of {} has \"{}\" in its name", generation.name,
                                 printable(fmt::format("{}", fmt::join(words, " ")))),
                     "without words all are listed");
}

}  // namespace

Result<std::string> list_events(const ListingOptions& options) {
  if (options.format == ListingFormat::gaps && options.model.empty()) {
    const auto all = vpmu::all_generations();
    return list_gaps({all.begin(), all.end()});
  }
  VMM_ASSIGN(const vpmu::GenerationDesc* generation, chosen_model(options.model));
  VMM_ASSIGN(const Sources sources, chosen_sources(options.source));
  VMM_ASSIGN(const Events events, chosen_events(*generation, options.words));
  switch (options.format) {
    case ListingFormat::text: return text_listing(*generation, events);
    case ListingFormat::wide: return wide_listing(*generation, events, sources);
    case ListingFormat::markdown:
      return markdown_listing(
          *generation, events,
          options.source.empty() ? Sources{{"exact", delivery_rule("exact", TimeModel::pipeline)}} : sources);
    case ListingFormat::json: return json_listing(*generation, events, sources);
    case ListingFormat::gaps: return list_gaps({generation});
  }
  return std::string{};
}

}  // namespace vmm::tool
