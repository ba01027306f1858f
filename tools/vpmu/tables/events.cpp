#include "tables/events.hpp"

#include <memory>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "pmu/registry.hpp"
#include "shared/output.hpp"
#include "tables/event_listing.hpp"
#include "tables/models.hpp"

namespace vmm::tool {
namespace {

struct EventsArguments {
  std::string model;
  std::string source;
  std::vector<std::string> words;
  bool wide{};
  bool markdown{};
  bool json{};
  bool gaps{};
};

ListingFormat format_of(const EventsArguments& arguments) {
  if (arguments.gaps) return ListingFormat::gaps;
  if (arguments.markdown) return ListingFormat::markdown;
  if (arguments.json) return ListingFormat::json;
  return arguments.wide || !arguments.source.empty() ? ListingFormat::wide : ListingFormat::text;
}

/// The sources that count by themselves, without KVM's PMU.
std::vector<std::string> source_names() {
  std::vector<std::string> names;
  for (const auto& source : all_sources()) names.emplace_back(source.traits.name);
  return names;
}

}  // namespace

void add_events(Command& app, int& exit_code) {
  auto arguments = std::make_shared<EventsArguments>();
  Command events =
      app.add_command("events", "list a model's events: code, precise or not, how each source delivers them");
  events.add_option("words", arguments->words, "only events that have all of these words in their names");
  events.add_option("--model", arguments->model, "CPU model, for example skylake; with --gaps, optional")
      .suggests(model_names());
  const Argument wide =
      events.add_flag("--wide", arguments->wide,
                      "also counters, perf's syntax, and for each source how it delivers the event, and why");
  events.add_option("--source", arguments->source, "the same of this counting source alone, for example clock")
      .suggests(source_names());
  const Argument gaps =
      events.add_flag("--gaps", arguments->gaps, "the precise events that the exact source does not deliver, and why");
  const Argument markdown = events.add_flag("--markdown", arguments->markdown, "as a Markdown page");
  events.add_flag("--json", arguments->json, "as JSON").excludes(markdown).excludes(gaps);
  markdown.excludes(gaps);
  wide.excludes(gaps).excludes(markdown);
  events.set_exit_codes(exit_codes_of_printing());
  events.add_example("vpmu events --model haswell",
                     "every event: its code, whether it can trigger PEBS records, how good its count is");
  events.add_example("vpmu events --model haswell l2 miss --wide",
                     "those of the L2's misses, with how each source delivers them, and why");
  events.add_example("vpmu events --gaps",
                     "for each model, the precise events that the exact source does not deliver, and why");
  events.when_given([arguments, &exit_code] {
    exit_code = print_or_explain("vpmu events", list_events({.model = arguments->model,
                                                             .source = arguments->source,
                                                             .words = arguments->words,
                                                             .format = format_of(*arguments)}));
  });
}

}  // namespace vmm::tool
