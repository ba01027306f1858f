#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "description.hpp"

namespace vmm::tool {

/// What a shell may offer for one word of a command line.
struct Completion {
  struct Candidate {
    std::string word;  ///< All of it, with what is there already.
    std::string help;  ///< May be empty.
  };
  /// What else the shell offers by its own means.
  enum class Also { nothing, files, command };
  std::vector<Candidate> candidates;
  Also also{Also::nothing};
  /// With `command`: which word is the command's name, the program's being word 0.
  std::size_t command_at{};
};

/// What can stand for the last of `words`, which may be empty and whose end is where the cursor is. The program's name
/// is not among them.
Completion complete(const CommandDescription& program, std::span<const std::string> words);

/// As the scripts read it: a line "words", "files" or "command N", then one for each candidate, a tab before its help.
std::string to_text(const Completion& completion);

/// The shells that have a script.
std::vector<std::string> completion_shells();

/// What a user of the shell lets it read. It asks `PROGRAM ASKED -- WORD...`, which prints to_text(), for every word:
/// so the shell offers what the installed program knows. Nothing for an unknown shell.
std::optional<std::string> completion_script(const std::string& shell, const std::string& program,
                                             const std::string& asked);

}  // namespace vmm::tool
