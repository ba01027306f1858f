#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// How a program has ended, and what it has written to both of its outputs.
struct ProgramEnd {
  int code{};  ///< Its exit code; 128 and a signal's number; 127 where there is no such program.
  std::string output;
};

/// Runs a program of this machine, for two minutes of the guest's time at most: SIGALRM ends it then.
ProgramEnd run_program(const std::vector<std::string>& command);

std::vector<std::string_view> lines_of(std::string_view text);
/// The last line that has something on it.
std::string_view last_line(std::string_view text);

}  // namespace vmm::tool::checker
