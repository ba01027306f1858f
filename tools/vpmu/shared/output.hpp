#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "description.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// Writes to standard output. False when that takes no more; finish_output() tells of it.
bool print(std::string_view text);

/// Ends a subcommand: without a failure returns 0, else writes one line about it, begun with `command`, to standard
/// error, and returns the exit code: 1 the host failed, 2 wrong use.
int explain(const char* command, const Result<void>& done);

/// Of a subcommand that prints one text: prints it, or explains.
int print_or_explain(const char* command, const Result<std::string>& text);

/// What a subcommand of these two ends with.
std::vector<ExitCode> exit_codes_of_printing();

/// At the program's end: whether standard output took all that was written to it. If not, says so and returns 1, or
/// `exit_code` where that is another failure; else `exit_code`.
int finish_output(int exit_code);

}  // namespace vmm::tool
