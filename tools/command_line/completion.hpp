#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "description.hpp"

namespace vmm::tool {

/// What a shell can offer for one word of a command line.
struct Completion {
  struct Candidate {
    std::string word;  ///< The whole word, including what has been typed.
    std::string help;  ///< May be empty.
  };
  /// What the shell itself should offer in addition.
  enum class Also { nothing, files, command };
  std::vector<Candidate> candidates;
  Also also{Also::nothing};
  /// With `command`: which word is the command's name, the program's being word 0.
  std::size_t command_at{};
};

/// Candidates for the last of `words`, which may be empty; the cursor is at its end. The program's name
/// is not among `words`.
Completion complete(const CommandDescription& program, std::span<const std::string> words);

/// The scripts' format: a line "words", "files" or "command N", then one for each candidate, a tab before its help.
std::string to_text(const Completion& completion);

/// The shells for which there is a script.
std::vector<std::string> completion_shells();

/// The script that a user of the shell sources. For every word it runs `PROGRAM ASKED -- WORD...`, which prints
/// to_text(), so the shell offers what the installed program knows. Nothing for an unknown shell.
std::optional<std::string> completion_script(const std::string& shell, const std::string& program,
                                             const std::string& asked);

}  // namespace vmm::tool
