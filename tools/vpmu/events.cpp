#include "events.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "event_listing.hpp"

namespace vmm::tool {
namespace {

struct EventsArguments {
  std::string model;
  std::string source;
  bool markdown{};
  bool json{};
};

ListingFormat format_of(const EventsArguments& arguments) {
  if (arguments.markdown) return ListingFormat::markdown;
  return arguments.json ? ListingFormat::json : ListingFormat::text;
}

Result<void> print_events(const EventsArguments& arguments) {
  VMM_ASSIGN(const std::string text,
             list_events({.model = arguments.model, .source = arguments.source, .format = format_of(arguments)}));
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return host_error("cannot write the listing to standard output", errno);
  return {};
}

int exit_code_of(const Result<void>& result) {
  if (result) return 0;
  std::fprintf(stderr, "vpmu events: %s\n", describe(result.error()).c_str());
  return result.error().kind == ErrorKind::usage ? 2 : 1;
}

}  // namespace

void add_events(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EventsArguments>();
  CLI::App* events =
      app.add_subcommand("events", "list a model's events: code, precise or not, how each source delivers them");
  events->add_option("--model", arguments->model, "CPU model, for example skylake")->required();
  events->add_option("--source", arguments->source, "only this counting source, for example clock");
  CLI::Option* markdown = events->add_flag("--markdown", arguments->markdown, "as a Markdown page");
  events->add_flag("--json", arguments->json, "as JSON")->excludes(markdown);
  events->callback([arguments, &exit_code] { exit_code = exit_code_of(print_events(*arguments)); });
}

}  // namespace vmm::tool
