#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// How a program ended, and what it wrote to standard output and error.
struct ProgramEnd {
  int code{};  ///< Its exit code; 128 and a signal's number; 127 where there is no such program.
  std::string output;
};

/// Runs a program of this machine for at most two minutes of the guest's time, after which SIGALRM ends it.
ProgramEnd run_program(const std::vector<std::string>& command);

std::vector<std::string_view> lines_of(std::string_view text);
/// The last line that is not blank.
std::string_view last_line(std::string_view text);

}  // namespace vmm::tool::checker
