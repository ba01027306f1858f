#include "completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace vmm::tool {
namespace {

/// A command line up to the current word.
struct Position {
  const CommandDescription* command;
  const ArgumentDescription* awaits{};  ///< The option whose value comes next.
  std::size_t positionals{};            ///< How many have been given.
  std::size_t first_positional{};       ///< The index of the first one.
  bool options_ended{};                 ///< By a --.
  std::set<std::string> given;          ///< Names of options.
};

const ArgumentDescription* find_option(const CommandDescription& command, std::string_view name) {
  const auto has_it = [name](const ArgumentDescription& option) { return std::ranges::count(option.names, name) > 0; };
  const auto found = std::ranges::find_if(command.options, has_it);
  return found == command.options.end() ? nullptr : &*found;
}

const CommandDescription* find_command(const CommandDescription& above, std::string_view name) {
  const auto found = std::ranges::find(above.commands, name, &CommandDescription::name);
  return found == above.commands.end() ? nullptr : &*found;
}

/// The positional argument that comes next; null when there is none.
const ArgumentDescription* next_positional(const Position& at) {
  const auto& all = at.command->positionals;
  if (at.positionals < all.size()) return &all[at.positionals];
  return !all.empty() && all.back().repeatable ? &all.back() : nullptr;
}

void take_option(Position& at, const std::string& word) {
  const auto equals = word.find('=');
  const ArgumentDescription* const option = find_option(*at.command, word.substr(0, equals));
  if (option == nullptr) return;
  at.given.insert(option->name());
  if (!option->value.empty() && equals == std::string::npos) at.awaits = option;
}

/// Advances over a complete word. `index`: its number, the program's being 0.
void take(Position& at, const std::string& word, std::size_t index) {
  if (at.awaits != nullptr) {
    at.awaits = nullptr;
  } else if (!at.options_ended && word == "--") {
    at.options_ended = true;
  } else if (!at.options_ended && word.size() > 1 && word.starts_with('-')) {
    take_option(at, word);
  } else if (const auto* const below = at.options_ended ? nullptr : find_command(*at.command, word)) {
    at = Position{.command = below, .given = {}};
  } else if (at.positionals++ == 0) {
    at.first_positional = index;
  }
}

/// Offers a candidate if it begins with the word.
void offer(Completion& completion, std::string_view word, std::string candidate, std::string help = {}) {
  if (candidate.starts_with(word)) completion.candidates.push_back({std::move(candidate), std::move(help)});
}

void offer_options(Completion& completion, const Position& at, std::string_view word) {
  for (const auto& option : at.command->options) {
    if (option.repeatable || !at.given.contains(option.name())) offer(completion, word, option.name(), option.help);
  }
}

/// `begin` is what precedes the value in the same word.
void offer_values(Completion& completion, const ArgumentDescription& argument, std::string_view word,
                  std::string_view begin = {}) {
  for (const auto& value : argument.values) offer(completion, word, fmt::format("{}{}", begin, value));
  const bool open = !argument.closed && argument.takes != Takes::number;
  if (open && (argument.values.empty() || argument.takes == Takes::file)) completion.also = Completion::Also::files;
}

void offer_positional(Completion& completion, const Position& at, std::string_view word, std::size_t index) {
  const ArgumentDescription* const argument = next_positional(at);
  if (argument == nullptr) {
    if (!at.options_ended) offer_options(completion, at, word);
  } else if (argument->takes == Takes::command) {
    completion.also = Completion::Also::command;
    completion.command_at = at.positionals == 0 ? index : at.first_positional;
  } else {
    offer_values(completion, *argument, word);
  }
}

}  // namespace

Completion complete(const CommandDescription& program, std::span<const std::string> words) {
  Completion completion;
  if (words.empty()) return completion;
  Position at{.command = &program, .given = {}};
  for (std::size_t i = 0; i + 1 < words.size(); ++i) take(at, words[i], i + 1);
  const std::string& word = words.back();
  const auto equals = word.find('=');
  if (at.awaits != nullptr) {
    offer_values(completion, *at.awaits, word);
  } else if (!at.options_ended && word.starts_with('-')) {
    const auto* const option = equals == std::string::npos ? nullptr : find_option(*at.command, word.substr(0, equals));
    if (option != nullptr && !option->value.empty()) {
      offer_values(completion, *option, word, std::string_view{word}.substr(0, equals + 1));
    } else {
      offer_options(completion, at, word);
    }
  } else if (!at.command->commands.empty()) {
    for (const auto& below : at.command->commands) offer(completion, word, below.name, below.help);
  } else {
    offer_positional(completion, at, word, words.size());
  }
  return completion;
}

std::string to_text(const Completion& completion) {
  std::string text;
  switch (completion.also) {
    case Completion::Also::nothing: text = "words\n"; break;
    case Completion::Also::files: text = "files\n"; break;
    case Completion::Also::command: text = fmt::format("command {}\n", completion.command_at); break;
  }
  for (const auto& [word, help] : completion.candidates)
    text += help.empty() ? word + "\n" : fmt::format("{}\t{}\n", word, help);
  return text;
}

}  // namespace vmm::tool
