#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "description.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vmm::tool {

/// What of each option and command the parser has no place for.
class Notes;

/// An option or a positional argument of a command; lives as long as the CommandLine.
class Argument {
 public:
  Argument(CLI::Option& option, Notes& notes) : option_{&option}, notes_{&notes} {}
  Argument required() const;
  /// The help shows what its variable had when this is called.
  Argument shows_default() const;
  Argument one_of(const std::vector<std::string>& values) const;
  /// Shells offer these values, and the manual names them; others are taken, too.
  Argument suggests(const std::vector<std::string>& values) const;
  /// The value is the name of a file or directory: help and manual call it FILE.
  Argument takes_file() const;
  /// A positional argument of several values: a command and its arguments.
  Argument takes_command() const;
  Argument within(unsigned least, unsigned most) const;
  Argument within(double least, double most) const;
  /// Refused without the other.
  Argument needs(Argument other) const;
  /// Refused with the other.
  Argument excludes(Argument other) const;

 private:
  CLI::Option* option_;
  Notes* notes_;
};

/// A command, or a group of options of one; lives as long as the CommandLine.
class Command {
 public:
  Command(CLI::App& app, Notes& notes) : app_{&app}, notes_{&notes} {}
  Command add_command(const std::string& name, const std::string& help);
  Command add_group(const std::string& name, const std::string& help);
  /// A name with dashes is an option's; any other, a positional argument's. T is std::string, a vector of those, an
  /// optional of a number or string, double, unsigned, or an integer of 64 bits.
  template <class T>
  Argument add_option(const std::string& name, T& target, const std::string& help);
  Argument add_flag(const std::string& name, bool& target, const std::string& help);
  void add_flag(const std::string& name, const std::function<void()>& given, const std::string& help);
  /// Exactly so many of its options.
  void require_options(unsigned count);
  /// So many of its commands.
  void require_commands(unsigned least, unsigned most);
  /// What the help says below the options.
  void set_footer(const std::string& text);
  /// Below the footer in the help, and a section of the manual.
  void set_exit_codes(const std::vector<ExitCode>& codes);
  /// The manual shows it.
  void add_example(const std::string& command, const std::string& meaning);
  /// Neither help, manual nor shells name the command.
  void hide();
  /// Called by parse() when the command was given.
  void when_given(const std::function<void()>& action);

 protected:
  [[nodiscard]] CLI::App& app() const { return *app_; }
  [[nodiscard]] Notes& notes() const { return *notes_; }

 private:
  CLI::App* app_;
  Notes* notes_;
};

/// What parse() has found.
struct ParseOutcome {
  enum class Kind { parsed, help_shown, wrong };
  Kind kind{};
  /// Of what is wrong: one line.
  std::string message;
  /// The command that was given, below the program's own; empty without one.
  std::string command;
};

/// The command line of a program.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& help, const std::string& name);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  /// Sets the variables and calls what was given to when_given(). --help prints the help.
  [[nodiscard]] ParseOutcome parse(int argc, const char* const* argv);
  /// The same of a line without the program's name.
  [[nodiscard]] ParseOutcome parse(const std::string& line);
  /// All of it that users may know, as it is now: what is added later is not in there.
  [[nodiscard]] CommandDescription describe() const;

 private:
  CommandLine(std::unique_ptr<CLI::App> app, std::unique_ptr<Notes> notes);
  template <class Parse>
  ParseOutcome outcome_of(Parse parse);
  std::unique_ptr<CLI::App> owned_;
  std::unique_ptr<Notes> notes_;
};

}  // namespace vmm::tool
