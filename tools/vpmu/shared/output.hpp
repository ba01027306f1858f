#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "description.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// Writes to standard output. False if that fails; finish_output() reports it.
bool print(std::string_view text);

/// Writes all of it to standard output, or to standard error, now. Fails with kind host.
Result<void> write_out(std::string_view text);
Result<void> write_error(std::string_view text);

/// Ends a subcommand: without a failure returns 0, else writes one line about it, begun with `command`, to standard
/// error, and returns the exit code: 1 the host failed, 2 wrong use.
int explain(const char* command, const Result<void>& done);

/// For a subcommand that prints one text: prints the text, or explains the failure.
int print_or_explain(const char* command, const Result<std::string>& text);

/// The exit codes of explain() and print_or_explain().
std::vector<ExitCode> exit_codes_of_printing();

/// At the program's end: checks whether all of standard output was written. If not, says so and returns 1, or
/// `exit_code` if that is another failure; otherwise returns `exit_code`.
int finish_output(int exit_code);

}  // namespace vmm::tool
