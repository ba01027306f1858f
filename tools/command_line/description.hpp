#pragma once
#include <string>
#include <vector>

namespace vmm::tool {

/// What a shell offers for a value in addition to the known values.
enum class Takes {
  number,   ///< Nothing can be offered.
  text,     ///< Possibly a file's name: the option does not say.
  file,     ///< The name of a file or directory.
  command,  ///< A command; from the second value on, the command's arguments.
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

/// An option or a positional argument, as documents and shells see it.
struct ArgumentDescription {
  std::vector<std::string> names;  ///< With dashes, short ones first; of a positional argument its name alone.
  std::string value;  ///< The placeholder for the value: FILE, N, or the option's name in capitals; empty for a flag.
  std::string help;   ///< One line. Text in backticks is typed literally.
  std::string default_value;        ///< Empty if the help does not show it.
  std::string range;                ///< "0 to 3"; empty without one.
  std::vector<std::string> values;  ///< Known values, in the order of the option's list.
  bool closed{};                    ///< Any value but those of `values` is refused.
  Takes takes{Takes::text};
  bool required{};
  bool repeatable{};
  std::vector<std::string> needs;     ///< Names of options: refused without them.
  std::vector<std::string> excludes;  ///< Names of options: refused with them.

  /// The long name if there is one, else the short one; of a positional argument its name.
  [[nodiscard]] const std::string& name() const { return names.back(); }
};

/// A group of options of which a given number is required.
struct ChoiceDescription {
  std::string help;
  std::vector<std::string> options;  ///< The name() of each.
};

/// A command, as documents and shells see it. Hidden commands are left out.
struct CommandDescription {
  std::string name;       ///< The last word.
  std::string full_name;  ///< All words, the program's first.
  std::string help;       ///< One line.
  std::string notes;      ///< Shown below the options; may be empty.
  std::vector<ArgumentDescription> positionals;
  std::vector<ArgumentDescription> options;
  std::vector<ChoiceDescription> choices;
  std::vector<CommandDescription> commands;
  std::vector<ExitCode> exit_codes;
  std::vector<Example> examples;
};

}  // namespace vmm::tool
