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

/// Properties of options and commands that the parser cannot store.
class Notes;

/// An option or a positional argument of a command; lives as long as the CommandLine.
class Argument {
 public:
  Argument(CLI::Option& option, Notes& notes) : option_{&option}, notes_{&notes} {}
  Argument required() const;
  /// The help shows the variable's value at the time of this call as the default.
  Argument shows_default() const;
  Argument one_of(const std::vector<std::string>& values) const;
  /// Shells offer these values, and the manual names them; other values are accepted, too.
  Argument suggests(const std::vector<std::string>& values) const;
  /// The value is the name of a file or directory: help and manual call it FILE.
  Argument takes_file() const;
  /// A positional argument of several values: a command and its arguments.
  Argument takes_command() const;
  /// The option may be given without a value: its text is empty then.
  Argument value_may_be_missing() const;
  Argument within(unsigned min, unsigned max) const;
  Argument within(double min, double max) const;
  /// The option is refused without the other one.
  Argument needs(Argument other) const;
  /// The option is refused together with the other one.
  Argument excludes(Argument other) const;

 private:
  template <class Number>
  Argument within_range(Number min, Number max) const;

  CLI::Option* option_;
  Notes* notes_;
};

/// A command, or a group of options of one; lives as long as the CommandLine.
class Command {
 public:
  Command(CLI::App& app, Notes& notes) : app_{&app}, notes_{&notes} {}
  /// What is added from here on stands under this heading in the help.
  void begin_section(const std::string& heading);
  Command add_command(const std::string& name, const std::string& help);
  Command add_group(const std::string& name, const std::string& help);
  /// A name with dashes is an option, any other a positional argument. T is std::string, a vector of those, an
  /// optional of a number or string, double, unsigned, or an integer of 64 bits.
  template <class T>
  Argument add_option(const std::string& name, T& target, const std::string& help);
  Argument add_flag(const std::string& name, bool& target, const std::string& help);
  void add_flag(const std::string& name, const std::function<void()>& given, const std::string& help);
  /// An option of another program that a user might try here: it is refused with the reason, and nothing else shows it.
  void refuse_option(const std::string& name, const std::string& why);
  /// Exactly so many of the options must be given.
  void require_options(unsigned count);
  /// So many of the commands must be given.
  void require_commands(unsigned min, unsigned max);
  /// Text that the help shows below the options.
  void set_footer(const std::string& text);
  /// Shown below the footer in the help, and as a section of the manual.
  void set_exit_codes(const std::vector<ExitCode>& codes);
  /// An example that the manual shows.
  void add_example(const std::string& command, const std::string& meaning);
  /// Hides the command from help, manual and shells.
  void hide();
  /// Called by parse() when the command was given.
  void when_given(const std::function<void()>& action);

 protected:
  [[nodiscard]] CLI::App& app() const { return *app_; }
  [[nodiscard]] Notes& notes() const { return *notes_; }

 private:
  CLI::Option* in_section(CLI::Option* option);

  CLI::App* app_;
  Notes* notes_;
};

/// The result of parse().
struct ParseOutcome {
  enum class Kind { parsed, help_shown, wrong };
  Kind kind{};
  /// If the command line is wrong: why, in one line.
  std::string message;
  /// The name of the command that was given, without the program's; empty if there was none.
  std::string command;
};

/// The command line of a program.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& help, const std::string& name);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  /// Sets the variables and calls the when_given() functions. --help prints the help.
  [[nodiscard]] ParseOutcome parse(int argc, const char* const* argv);
  /// The same for a line without the program's name.
  [[nodiscard]] ParseOutcome parse(const std::string& line);
  /// Everything that users may know, except hidden commands; what is added later is not included.
  [[nodiscard]] CommandDescription describe() const;

 private:
  CommandLine(std::unique_ptr<CLI::App> app, std::unique_ptr<Notes> notes);
  template <class Parse>
  ParseOutcome outcome_of(const std::vector<std::string>& words, Parse parse);
  std::unique_ptr<CLI::App> owned_;
  std::unique_ptr<Notes> notes_;
};

}  // namespace vmm::tool
