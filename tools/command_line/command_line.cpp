#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>

#include "notes.hpp"
#include "unknown_word.hpp"

namespace vmm::tool {
namespace {

/// A range as users would write it: 0.001 to 1000000.
template <class Number>
std::string describe_range(Number min, Number max) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::digits10) << min << " to " << max;
  return text.str();
}

/// Whether a value of that type is a number.
template <class T>
constexpr bool is_number =
    std::is_arithmetic_v<T> || std::same_as<T, std::optional<double>> || std::same_as<T, std::optional<std::uint64_t>>;

/// Rebuilds the help's footer from both parts of the note.
void refresh_footer(CLI::App& app, const CommandNote& note) {
  std::string codes;
  for (const ExitCode& exit : note.exit_codes) codes += (codes.empty() ? "" : "; ") + exit.code + " " + exit.meaning;
  if (!codes.empty()) codes = "Exit codes: " + codes + ".";
  app.footer(note.footer + (note.footer.empty() || codes.empty() ? "" : " ") + codes);
}

/// The parser's help, with the options of which one must be given first, and not last.
class HelpFormat final : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, std::move(name), mode), "\n\n\n", "\n\n");
  }
  [[nodiscard]] std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = CLI::Formatter::make_usage(app, std::move(name));
    for (const CLI::App* const group : app->get_subcommands([](const CLI::App* part) { return is_group(*part); })) {
      text += (group->get_require_option_min() == 1 ? "\nOne of these, " : "\n") + group->get_description() + ":\n";
      for (const CLI::Option* const option : group->get_options())
        if (option != group->get_help_ptr()) text += make_option(option, false);
    }
    return text;
  }
  [[nodiscard]] std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode /*mode*/) const override {
    std::string text, section;
    for (const CLI::App* const command : app->get_subcommands([](const CLI::App* part) { return !is_group(*part); })) {
      if (command->get_group().empty()) continue;  // hidden
      if (command->get_group() != section) text += '\n' + (section = command->get_group()) + ":\n";
      text += make_subcommand(command);
    }
    return text;
  }

 private:
  static bool is_group(const CLI::App& part) { return part.get_name().empty(); }
};

}  // namespace

Argument Argument::required() const {
  option_->required();
  return *this;
}

Argument Argument::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Argument Argument::one_of(const std::vector<std::string>& values) const {
  option_->check(CLI::IsMember(values));
  (*notes_)[*option_].values = values;
  (*notes_)[*option_].closed = true;
  return *this;
}

Argument Argument::suggests(const std::vector<std::string>& values) const {
  (*notes_)[*option_].values = values;
  return *this;
}

Argument Argument::takes_file() const {
  option_->type_name("FILE");
  (*notes_)[*option_].takes = Takes::file;
  return *this;
}

Argument Argument::takes_command() const {
  (*notes_)[*option_].takes = Takes::command;
  return *this;
}

Argument Argument::value_may_be_missing() const {
  option_->expected(0, 1);
  return *this;
}

Argument Argument::within(unsigned min, unsigned max) const { return within_range(min, max); }
Argument Argument::within(double min, double max) const { return within_range(min, max); }

template <class Number>
Argument Argument::within_range(Number min, Number max) const {
  const std::string range = describe_range(min, max);
  option_->check([min, max, range](const std::string& text) {
    Number value{};
    const bool is_within = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
    return is_within ? std::string{} : text + " is not a number from " + range;
  });
  option_->type_name("N (" + range + ')');
  (*notes_)[*option_].range = range;
  return *this;
}

Argument Argument::needs(Argument other) const {
  option_->needs(other.option_);
  return *this;
}

Argument Argument::excludes(Argument other) const {
  option_->excludes(other.option_);
  return *this;
}

void Command::begin_section(const std::string& heading) { (*notes_)[*app_].section = heading; }

CLI::Option* Command::in_section(CLI::Option* option) {
  if (const std::string& section = (*notes_)[*app_].section; !section.empty()) option->group(section);
  return option;
}

Command Command::add_command(const std::string& name, const std::string& help) {
  CLI::App& command = *app_->add_subcommand(name, help);
  if (const std::string& section = (*notes_)[*app_].section; !section.empty()) command.group(section);
  return Command{command, *notes_};
}

Command Command::add_group(const std::string& name, const std::string& help) {
  return Command{*app_->add_option_group(name, help), *notes_};
}

template <class T>
Argument Command::add_option(const std::string& name, T& target, const std::string& help) {
  CLI::Option* const option = in_section(app_->add_option(name, target, help));
  // An option with several values is given once for each value: the words after the first may belong to the command.
  if (name.starts_with('-')) option->allow_extra_args(false);
  if (is_number<T>) (*notes_)[*option].takes = Takes::number;
  return Argument{*option, *notes_};
}

template Argument Command::add_option(const std::string& name, std::string& target, const std::string& help);
template Argument Command::add_option(const std::string& name, std::vector<std::string>& target,
                                      const std::string& help);
template Argument Command::add_option(const std::string& name, std::optional<std::string>& target,
                                      const std::string& help);
template Argument Command::add_option(const std::string& name, std::optional<double>& target, const std::string& help);
template Argument Command::add_option(const std::string& name, std::optional<std::uint64_t>& target,
                                      const std::string& help);
template Argument Command::add_option(const std::string& name, double& target, const std::string& help);
template Argument Command::add_option(const std::string& name, unsigned& target, const std::string& help);
template Argument Command::add_option(const std::string& name, std::uint64_t& target, const std::string& help);
template Argument Command::add_option(const std::string& name, std::int64_t& target, const std::string& help);

Argument Command::add_flag(const std::string& name, bool& target, const std::string& help) {
  return Argument{*in_section(app_->add_flag(name, target, help)), *notes_};
}

void Command::add_flag(const std::string& name, const std::function<void()>& given, const std::string& help) {
  in_section(app_->add_flag_callback(name, given, help));
}

void Command::refuse_option(const std::string& name, const std::string& why) {
  const auto refuse = [name, why] { throw CLI::ValidationError(name, why); };
  app_->add_flag_callback(name, refuse)->group("");
}

void Command::require_options(unsigned count) { app_->require_option(static_cast<int>(count)); }

void Command::require_commands(unsigned min, unsigned max) { app_->require_subcommand(min, max); }

void Command::set_footer(const std::string& text) {
  (*notes_)[*app_].footer = text;
  refresh_footer(*app_, (*notes_)[*app_]);
}

void Command::set_exit_codes(const std::vector<ExitCode>& codes) {
  (*notes_)[*app_].exit_codes = codes;
  refresh_footer(*app_, (*notes_)[*app_]);
}

void Command::add_example(const std::string& command, const std::string& meaning) {
  (*notes_)[*app_].examples.push_back({.command = command, .meaning = meaning});
}

void Command::hide() { app_->group(""); }

void Command::when_given(const std::function<void()>& action) { app_->callback(action); }

CommandLine::CommandLine(const std::string& help, const std::string& name)
    : CommandLine{std::make_unique<CLI::App>(help, name), std::make_unique<Notes>()} {}

CommandLine::CommandLine(std::unique_ptr<CLI::App> app, std::unique_ptr<Notes> notes)
    : Command{*app, *notes}, owned_{std::move(app)}, notes_{std::move(notes)} {
  owned_->formatter(std::make_shared<HelpFormat>());
}

CommandLine::~CommandLine() = default;

template <class Parse>
ParseOutcome CommandLine::outcome_of(const std::vector<std::string>& words, Parse parse) {
  ParseOutcome outcome{.kind = ParseOutcome::Kind::parsed, .message = {}, .command = {}};
  try {
    parse();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app().exit(error);  // prints the help
      outcome.kind = ParseOutcome::Kind::help_shown;
    } else {
      const std::string text = error.what();
      outcome.kind = ParseOutcome::Kind::wrong;
      outcome.message = describe_unknown_word(app(), *notes_, words);
      if (outcome.message.empty()) outcome.message = text.substr(0, text.find('\n'));
    }
  }
  if (const auto given = app().get_subcommands(); !given.empty()) outcome.command = given.front()->get_name();
  return outcome;
}

ParseOutcome CommandLine::parse(int argc, const char* const* argv) {
  return outcome_of({argv + std::min(argc, 1), argv + argc}, [&] { app().parse(argc, argv); });
}

ParseOutcome CommandLine::parse(const std::string& line) {
  return outcome_of(CLI::detail::split_up(line), [&] { app().parse(line); });
}

}  // namespace vmm::tool
