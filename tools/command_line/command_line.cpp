#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <utility>

namespace vmm::tool {

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
  return *this;
}

Argument Argument::within(unsigned least, unsigned most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument Argument::within(double least, double most) const {
  option_->check(CLI::Range(least, most));
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
  return Command{*app_->add_subcommand(name, help)};
}

Command Command::add_group(const std::string& name, const std::string& help) {
  return Command{*app_->add_option_group(name, help)};
}

template <class T>
Argument Command::add_option(const std::string& name, T& target, const std::string& help) {
  CLI::Option* const option = app_->add_option(name, target, help);
  // An option of several values is given once for each: what follows the first may be the command's.
  if (name.starts_with('-')) option->allow_extra_args(false);
  return Argument{*option};
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
  return Argument{*app_->add_flag(name, target, help)};
}

void Command::add_flag(const std::string& name, const std::function<void()>& given, const std::string& help) {
  app_->add_flag_callback(name, given, help);
}

void Command::require_options(unsigned count) { app_->require_option(static_cast<int>(count)); }

void Command::require_commands(unsigned least, unsigned most) { app_->require_subcommand(least, most); }

void Command::set_footer(const std::string& text) { app_->footer(text); }

void Command::when_given(const std::function<void()>& action) { app_->callback(action); }

CommandLine::CommandLine(const std::string& help, const std::string& name)
    : CommandLine{std::make_unique<CLI::App>(help, name)} {}

CommandLine::CommandLine(std::unique_ptr<CLI::App> app) : Command{*app}, owned_{std::move(app)} {}

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
