#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>

#include "notes.hpp"

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

Argument Argument::within(unsigned min, unsigned max) const {
  option_->check(CLI::Range(min, max));
  (*notes_)[*option_].range = describe_range(min, max);
  return *this;
}

Argument Argument::within(double min, double max) const {
  option_->check(CLI::Range(min, max));
  (*notes_)[*option_].range = describe_range(min, max);
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

Command Command::add_command(const std::string& name, const std::string& help) {
  return Command{*app_->add_subcommand(name, help), *notes_};
}

Command Command::add_group(const std::string& name, const std::string& help) {
  return Command{*app_->add_option_group(name, help), *notes_};
}

template <class T>
Argument Command::add_option(const std::string& name, T& target, const std::string& help) {
  CLI::Option* const option = app_->add_option(name, target, help);
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
  return Argument{*app_->add_flag(name, target, help), *notes_};
}

void Command::add_flag(const std::string& name, const std::function<void()>& given, const std::string& help) {
  app_->add_flag_callback(name, given, help);
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
    : Command{*app, *notes}, owned_{std::move(app)}, notes_{std::move(notes)} {}

CommandLine::~CommandLine() = default;

template <class Parse>
ParseOutcome CommandLine::outcome_of(Parse parse) {
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
      outcome.message = text.substr(0, text.find('\n'));
    }
  }
  if (const auto given = app().get_subcommands(); !given.empty()) outcome.command = given.front()->get_name();
  return outcome;
}

ParseOutcome CommandLine::parse(int argc, const char* const* argv) {
  return outcome_of([&] { app().parse(argc, argv); });
}

ParseOutcome CommandLine::parse(const std::string& line) {
  return outcome_of([&] { app().parse(line); });
}

}  // namespace vmm::tool
