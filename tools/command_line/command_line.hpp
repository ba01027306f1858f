#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vmm::tool {

/// An option or a positional argument of a command; lives as long as the CommandLine.
class Argument {
 public:
  explicit Argument(CLI::Option& option) : option_{&option} {}
  Argument required() const;
  /// The help shows what its variable had when this is called.
  Argument shows_default() const;
  Argument one_of(const std::vector<std::string>& values) const;
  Argument within(unsigned least, unsigned most) const;
  Argument within(double least, double most) const;
  /// Refused without the other.
  Argument needs(Argument other) const;
  /// Refused with the other.
  Argument excludes(Argument other) const;

 private:
  CLI::Option* option_;
};

/// A command, or a group of options of one; lives as long as the CommandLine.
class Command {
 public:
  explicit Command(CLI::App& app) : app_{&app} {}
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
  void set_footer(const std::string& text);
  /// Called by parse() when the command was given.
  void when_given(const std::function<void()>& action);

 protected:
  [[nodiscard]] CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
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

 private:
  explicit CommandLine(std::unique_ptr<CLI::App> app);
  template <class Parse>
  ParseOutcome outcome_of(Parse parse);
  std::unique_ptr<CLI::App> owned_;
};

}  // namespace vmm::tool
