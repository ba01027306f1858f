#pragma once
#include <map>
#include <string>
#include <vector>

#include "description.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vmm::tool {

/// What an option's table says that the parser has no place for.
struct ArgumentNote {
  std::vector<std::string> values;
  bool closed{};
  std::string range;
  Takes takes{Takes::text};
};

/// The same of a command.
struct CommandNote {
  std::string footer;
  std::vector<ExitCode> exit_codes;
  std::vector<Example> examples;
};

/// Of all options and commands of a command line; by their addresses, which stay.
class Notes {
 public:
  /// Makes an empty one where there is none yet.
  ArgumentNote& operator[](const CLI::Option& option) { return arguments_[&option]; }
  /// Makes an empty one where there is none yet.
  CommandNote& operator[](const CLI::App& app) { return commands_[&app]; }

 private:
  std::map<const CLI::Option*, ArgumentNote> arguments_;
  std::map<const CLI::App*, CommandNote> commands_;
};

}  // namespace vmm::tool
