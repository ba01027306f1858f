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

/// Properties of an option that the parser cannot store.
struct ArgumentNote {
  std::vector<std::string> values;
  bool closed{};
  std::string range;
  Takes takes{Takes::text};
};

/// Properties of a command that the parser cannot store.
struct CommandNote {
  std::string footer;
  std::vector<ExitCode> exit_codes;
  std::vector<Example> examples;
  std::string section;  ///< Of what is added next; empty: the parser's own.
};

/// The notes for all options and commands of a command line, by their addresses, which do not change.
class Notes {
 public:
  /// Creates an empty note if there is none yet.
  ArgumentNote& operator[](const CLI::Option& option) { return arguments_[&option]; }
  /// Creates an empty note if there is none yet.
  CommandNote& operator[](const CLI::App& app) { return commands_[&app]; }

 private:
  std::map<const CLI::Option*, ArgumentNote> arguments_;
  std::map<const CLI::App*, CommandNote> commands_;
};

}  // namespace vmm::tool
