#include "description.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command_line.hpp"
#include "notes.hpp"
#include "roff.hpp"

namespace vmm::tool {
namespace {

/// The placeholder for a value in a synopsis.
std::string value_of(const CLI::Option& option, const ArgumentNote& note) {
  if (option.get_items_expected_max() == 0) return "";
  if (note.takes == Takes::file) return "FILE";
  if (note.takes == Takes::number) return "N";
  return option.get_lnames().empty() ? "VALUE" : upper(option.get_lnames().front());
}

std::vector<std::string> names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return names;
}

ArgumentDescription describe(const CLI::Option& option, Notes& notes) {
  const ArgumentNote& note = notes[option];
  ArgumentDescription described{
      .names = {},
      .value = value_of(option, note),
      .help = option.get_description(),
      .default_value = option.get_default_str(),
      .range = note.range,
      .values = note.values,
      .closed = note.closed,
      .takes = note.takes,
      .required = option.get_required(),
      .repeatable = option.get_items_expected_max() >= CLI::detail::expected_max_vector_size,
      .needs = names_of(option.get_needs()),
      .excludes = names_of(option.get_excludes()),
  };
  for (const auto& name : option.get_snames()) described.names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) described.names.push_back("--" + name);
  if (option.get_positional()) described.names = {option.get_name(true)};
  return described;
}

/// The options of a command, or of a group. A group has its own --help, which is left out.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  auto options = app.get_options();
  const bool is_group = app.get_name().empty();
  std::erase_if(options, [&app, is_group](const CLI::Option* option) {
    return option->get_group().empty() || (is_group && option == app.get_help_ptr());
  });
  return options;
}

void add_arguments(CommandDescription& command, const CLI::App& app, Notes& notes) {
  for (const CLI::Option* const option : shown_options(app)) {
    auto& where = option->get_positional() ? command.positionals : command.options;
    where.push_back(describe(*option, notes));
  }
}

ChoiceDescription describe_choice(const CLI::App& group) {
  ChoiceDescription choice{.help = group.get_description(), .options = {}};
  for (const CLI::Option* const option : shown_options(group)) choice.options.push_back(option->get_name());
  return choice;
}

// Recurses as deep as commands are nested. NOLINTNEXTLINE(misc-no-recursion)
CommandDescription describe(const CLI::App& app, const std::string& above, Notes& notes) {
  const CommandNote& note = notes[app];
  CommandDescription command;
  command.name = app.get_name();
  command.full_name = above + (above.empty() ? "" : " ") + command.name;
  command.help = app.get_description();
  command.notes = note.footer;
  command.exit_codes = note.exit_codes;
  command.examples = note.examples;
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* const part : below) {
    if (part->get_group().empty()) continue;
    if (!part->get_name().empty()) {
      command.commands.push_back(describe(*part, command.full_name, notes));
      continue;
    }
    add_arguments(command, *part, notes);
    command.choices.push_back(describe_choice(*part));
  }
  add_arguments(command, app, notes);
  return command;
}

}  // namespace

CommandDescription CommandLine::describe() const { return tool::describe(app(), "", notes()); }

}  // namespace vmm::tool
