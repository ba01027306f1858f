#include "unknown_word.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include "notes.hpp"

namespace vmm::tool {
namespace {

/// Letters to insert, remove, replace or exchange with the next one: the optimal string alignment distance.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last.back();
}

/// Empty: none is like it. Of two that are as near the first.
std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string found;
  std::size_t fewest = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& one : known)
    if (const std::size_t edits = edits_between(word, one); edits < fewest) {
      fewest = edits;
      found = one;
    }
  return found;
}

/// The commands of one, in order, and the groups of its options, which have no names.
struct Parts {
  explicit Parts(const CLI::App& of) {
    for (const CLI::App* const part : of.get_subcommands([](const CLI::App*) { return true; }))
      (part->get_name().empty() ? groups : commands).push_back(part);
  }
  std::vector<const CLI::App*> commands, groups;
};

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  const auto add = [&names](const CLI::App& of) {
    for (const CLI::Option* const option : of.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  };
  add(command);
  for (const CLI::App* const group : Parts{command}.groups) add(*group);
  return names;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* const part : Parts{command}.commands)
    if (!part->get_group().empty()) names.push_back(part->get_name());
  return names;
}

std::string no_such(std::string_view kind, std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return fmt::format("no {} {}{}{}", kind, word, near.empty() ? "" : "; the nearest is ", near);
}

/// Whether the command's positional arguments are a command and its arguments.
bool takes_command(const CLI::App& command, Notes& notes) {
  return std::ranges::any_of(command.get_options(), [&notes](const CLI::Option* option) {
    return option->get_positional() && notes[*option].takes == Takes::command;
  });
}

/// The option of a word that may have its value, too: --name=value or -nvalue. Null: there is none.
const CLI::Option* option_of(const CLI::App& command, const std::string& word) {
  const CLI::Option* const option = command.get_option_no_throw(word.substr(0, word.find('=')));
  const bool is_short = word.size() > 2 && word[1] != '-';
  return option == nullptr && is_short ? command.get_option_no_throw(word.substr(0, 2)) : option;
}

}  // namespace

std::string describe_unknown_word(const CLI::App& program, Notes& notes, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  std::string path = program.get_name();
  std::optional<std::size_t> argument;  // the first word of a command that is not ours
  for (std::size_t n = 0; n < words.size() && words[n] != "--"; ++n) {
    const std::string& word = words[n];
    if (word.size() > 1 && word.starts_with('-')) {
      const CLI::Option* const option = option_of(*command, word);
      if (option == nullptr && argument)
        return fmt::format("no option {} of {}; if it is of the command, put -- before that: {} {} -- {}", word, path,
                           program.get_name(), fmt::join(std::span{words}.first(*argument), " "),
                           fmt::join(std::span{words}.subspan(*argument), " "));
      const std::string name = word.substr(0, word.find('='));
      if (option == nullptr) return no_such("option", name, options_of(*command));
      if (option->get_items_expected_max() != 0 && option->check_name(word)) ++n;  // its value is the next word
      continue;
    }
    const auto commands = Parts{*command}.commands;
    const auto given = std::ranges::find_if(commands, [&word](const CLI::App* one) { return one->check_name(word); });
    if (given != commands.end()) {
      command = *given;
      path += ' ' + word;
    } else if (!commands.empty()) {
      return no_such("command", word, commands_of(*command));
    } else if (!argument && takes_command(*command, notes)) {
      argument = n;
    }
  }
  return {};
}

}  // namespace vmm::tool
