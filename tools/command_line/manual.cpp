#include "manual.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "roff.hpp"

namespace vmm::tool {
namespace {

/// The name of the command's page: vpmu-virt for "vpmu virt".
std::string page_name(const CommandDescription& command) {
  std::string name = command.full_name;
  std::ranges::replace(name, ' ', '-');
  return name;
}

/// The text with a capital at its start and a full stop at its end.
std::string sentence(std::string text) {
  if (text.empty()) return text;
  text.front() = upper(text.substr(0, 1)).front();
  return std::string_view{".!?"}.find(text.back()) == std::string_view::npos ? text + "." : text;
}

/// An option and its value as they are typed.
std::string usage_of(const ArgumentDescription& option) {
  return roff_bold(option.name()) + (option.value.empty() ? "" : " " + roff_italic(option.value));
}

/// All names of an option, and its value.
std::string term_of(const ArgumentDescription& option) {
  std::vector<std::string> names;
  std::ranges::transform(option.names, std::back_inserter(names), roff_bold);
  return fmt::format("{}{}", fmt::join(names, ", "), option.value.empty() ? "" : " " + roff_italic(option.value));
}

std::string usage_of_positional(const ArgumentDescription& argument) {
  const std::string name = roff_italic(upper(argument.name()));
  if (argument.takes == Takes::command) return roff_bold("--") + " " + name + " [" + roff_italic("ARGUMENT") + "]...";
  const std::string all = name + (argument.repeatable ? "..." : "");
  return argument.required ? all : "[" + all + "]";
}

bool is_in_a_choice(const CommandDescription& command, const ArgumentDescription& option) {
  return std::ranges::any_of(command.choices, [&option](const ChoiceDescription& choice) {
    return std::ranges::count(choice.options, option.name()) > 0;
  });
}

std::string usage_of_choice(const CommandDescription& command, const ChoiceDescription& choice) {
  std::vector<std::string> usages;
  for (const auto& option : command.options) {
    if (std::ranges::count(choice.options, option.name()) > 0) usages.push_back(usage_of(option));
  }
  return fmt::format("{{{}}}", fmt::join(usages, " | "));
}

/// The command's synopsis, in one line of roff.
std::string synopsis(const CommandDescription& command) {
  std::string line = roff_bold(command.full_name);
  for (const auto& choice : command.choices) line += " " + usage_of_choice(command, choice);
  bool optional = false;
  for (const auto& option : command.options) {
    if (option.required) line += " " + usage_of(option);
    optional = optional || (!option.required && !is_in_a_choice(command, option));
  }
  if (optional) line += " [" + roff_italic("OPTION") + "]...";
  for (const auto& argument : command.positionals) line += " " + usage_of_positional(argument);
  return line;
}

/// Whether the help mentions each of the values; of NAME=VALUE both parts.
bool names_all(const std::string& help, const std::vector<std::string>& values) {
  const auto has = [&help](const std::string& word) { return help.find(word) != std::string::npos; };
  return std::ranges::all_of(values, [&has](const std::string& value) {
    const auto equals = value.find('=');
    return has(value.substr(0, equals)) && (equals == std::string::npos || has(value.substr(equals + 1)));
  });
}

/// Facts about an argument that its help text does not contain.
std::vector<std::string> facts_of(const ArgumentDescription& argument) {
  std::vector<std::string> facts;
  const auto add = [&facts](std::string_view what, const std::vector<std::string>& words) {
    if (!words.empty()) facts.push_back(fmt::format("{} {}.", what, fmt::join(words, ", ")));
  };
  if (argument.closed) {
    add("One of", argument.values);
  } else if (!names_all(argument.help, argument.values)) {
    add("Known values:", argument.values);
  }
  if (!argument.range.empty()) facts.push_back("From " + argument.range + ".");
  if (!argument.default_value.empty()) facts.push_back("Default: " + argument.default_value + ".");
  if (argument.required && argument.name().starts_with("-")) facts.emplace_back("Required.");
  if (argument.repeatable && argument.takes != Takes::command) facts.emplace_back("Can be given several times.");
  add("Only with", argument.needs);
  add("Not with", argument.excludes);
  return facts;
}

std::string meaning_of(const ArgumentDescription& argument) {
  const std::string end = argument.help.ends_with('.') || argument.help.empty() ? "" : ".";
  const auto facts = facts_of(argument);
  return roff(fmt::format("{}{}{}{}", argument.help, end, facts.empty() ? "" : " ", fmt::join(facts, " ")));
}

void add_description(ManualPage& page, const CommandDescription& command) {
  page.paragraph(roff(sentence(command.help)));
  if (!command.notes.empty()) page.paragraph(roff(command.notes));
}

void add_positionals(ManualPage& page, const CommandDescription& command) {
  for (const auto& argument : command.positionals) page.item(roff_italic(upper(argument.name())), meaning_of(argument));
}

/// A command's page shows --help once, not again for each nested command.
enum class HelpOption { shown, left_out };

void add_options(ManualPage& page, const CommandDescription& command, HelpOption help = HelpOption::shown) {
  for (const auto& choice : command.choices) page.paragraph(roff(sentence("one of these gives " + choice.help)));
  for (const auto& option : command.options) {
    if (help == HelpOption::shown || option.name() != "--help") page.item(term_of(option), meaning_of(option));
  }
}

void add_exit_codes(ManualPage& page, const std::vector<ExitCode>& codes) {
  for (const auto& exit : codes) page.item(roff_bold(exit.code), roff(sentence(exit.meaning)));
}

/// The exit codes of a command; if it has none, those of the first command below it.
std::vector<ExitCode> exit_codes_of(const CommandDescription& command) {
  if (!command.exit_codes.empty() || command.commands.empty()) return command.exit_codes;
  return command.commands.front().exit_codes;
}

void add_examples(ManualPage& page, const std::vector<Example>& examples) {
  for (const auto& example : examples) {
    page.paragraph(roff(sentence(example.meaning)));
    page.command_line(example.command);
  }
}

std::string reference_to(const CommandDescription& command) { return roff_bold(page_name(command)) + "(1)"; }

/// Related pages: those of commands that the text of this page names.
std::string see_also(const ManualPage& page, const CommandDescription& program, const CommandDescription& command) {
  std::string references = reference_to(program);
  for (const auto& other : program.commands) {
    const std::string named = roff(other.full_name);
    const auto names_it = [&](char end) { return page.text().find(named + end) != std::string::npos; };
    if (&other != &command && (names_it(' ') || names_it('\\'))) references += ", " + reference_to(other);
  }
  return references;
}

void begin_page(ManualPage& page, const CommandDescription& command) {
  page.section("NAME");
  page.paragraph(roff(page_name(command)) + " \\- " + roff(command.help));
  page.section("SYNOPSIS");
}

/// The nested commands, each with its complete description.
void add_nested(ManualPage& page, const CommandDescription& command) {
  for (const auto& nested : command.commands) {
    page.subsection(nested.full_name);
    add_description(page, nested);
    add_positionals(page, nested);
    add_options(page, nested, HelpOption::left_out);
  }
}

Page page_of(const CommandDescription& program, const CommandDescription& command, const ManualFoot& foot) {
  ManualPage page{page_name(command), foot.version, foot.date};
  begin_page(page, command);
  if (command.commands.empty()) page.paragraph(synopsis(command));
  std::string lines;
  for (const auto& nested : command.commands) lines += (lines.empty() ? "" : "\n.br\n") + synopsis(nested);
  if (!lines.empty()) page.paragraph(lines);
  page.section("DESCRIPTION");
  add_description(page, command);
  if (!command.positionals.empty()) page.section("ARGUMENTS");
  add_positionals(page, command);
  page.section("OPTIONS");
  add_options(page, command);
  if (!command.commands.empty()) page.section("COMMANDS");
  add_nested(page, command);
  const auto codes = exit_codes_of(command);
  if (!codes.empty()) page.section("EXIT STATUS");
  add_exit_codes(page, codes);
  if (!command.examples.empty()) page.section("EXAMPLES");
  add_examples(page, command.examples);
  const std::string references = see_also(page, program, command);
  page.section("SEE ALSO");
  page.paragraph(references);
  return {.name = page_name(command) + ".1", .text = page.text()};
}

Page program_page(const CommandDescription& program, const ManualFoot& foot) {
  ManualPage page{program.name, foot.version, foot.date};
  begin_page(page, program);
  const std::string name = roff_bold(program.name);
  page.paragraph(name + " [" + roff_italic("OPTION") + "]\n.br\n" + name + " " + roff_italic("COMMAND") + " [" +
                 roff_italic("ARGUMENT") + "]...");
  page.section("DESCRIPTION");
  add_description(page, program);
  page.section("OPTIONS");
  add_options(page, program);
  page.section("COMMANDS");
  for (const auto& command : program.commands) page.item(reference_to(command), roff(sentence(command.help)));
  if (!program.exit_codes.empty()) page.section("EXIT STATUS");
  add_exit_codes(page, program.exit_codes);
  if (!program.examples.empty()) page.section("EXAMPLES");
  add_examples(page, program.examples);
  page.section("SEE ALSO");
  std::vector<std::string> references;
  std::ranges::transform(program.commands, std::back_inserter(references), reference_to);
  page.paragraph(fmt::format("{}", fmt::join(references, ", ")));
  return {.name = program.name + ".1", .text = page.text()};
}

}  // namespace

std::vector<Page> manual_pages(const CommandDescription& program, const ManualFoot& foot) {
  std::vector<Page> pages{program_page(program, foot)};
  for (const auto& command : program.commands) pages.push_back(page_of(program, command, foot));
  return pages;
}

}  // namespace vmm::tool
