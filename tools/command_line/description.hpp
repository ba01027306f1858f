#pragma once
#include <string>
#include <vector>

namespace vmm::tool {

/// What a shell offers for a value besides the values that are known.
enum class Takes {
  number,   ///< Nothing can be offered.
  text,     ///< May be a file's name, as far as the option's table tells.
  file,     ///< The name of a file or directory.
  command,  ///< A command, and from the second value on its arguments.
};

/// One exit code of a command.
struct ExitCode {
  std::string code;     ///< "2", or words such as "any other".
  std::string meaning;  ///< Lower case, without a full stop.
};

/// A command line that users may copy.
struct Example {
  std::string command;  ///< With the program's name.
  std::string meaning;
};

/// What the documents and the shells are told of an option or a positional argument.
struct ArgumentDescription {
  std::vector<std::string> names;  ///< With their dashes, short ones first; of a positional argument its name alone.
  std::string value;  ///< What stands for the value: FILE, N, or the option's name in capitals; empty for a flag.
  std::string help;   ///< One line. What is in backticks is to be typed.
  std::string default_value;        ///< Empty where the help does not show it.
  std::string range;                ///< "0 to 3"; empty without one.
  std::vector<std::string> values;  ///< Known values, in the order of the table.
  bool closed{};                    ///< Any value but those of `values` is refused.
  Takes takes{Takes::text};
  bool required{};
  bool repeatable{};
  std::vector<std::string> needs;     ///< Names of options: refused without them.
  std::vector<std::string> excludes;  ///< Names of options: refused with them.

  /// The long name where there is one, else the short one; of a positional argument its name.
  [[nodiscard]] const std::string& name() const { return names.back(); }
};

/// Options of which a given number has to be there.
struct ChoiceDescription {
  std::string help;
  std::vector<std::string> options;  ///< The name() of each.
};

/// What the documents and the shells are told of a command. Hidden commands are left out.
struct CommandDescription {
  std::string name;       ///< The last word.
  std::string full_name;  ///< All words, the program's first.
  std::string help;       ///< One line.
  std::string notes;      ///< What is said below the options; may be empty.
  std::vector<ArgumentDescription> positionals;
  std::vector<ArgumentDescription> options;
  std::vector<ChoiceDescription> choices;
  std::vector<CommandDescription> commands;
  std::vector<ExitCode> exit_codes;
  std::vector<Example> examples;
};

}  // namespace vmm::tool
