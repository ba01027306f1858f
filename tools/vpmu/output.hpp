#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

/// Ends a subcommand that prints one text: writes it to standard output, or one line about what is wrong, begun with `command`, to standard
/// error. Returns the exit code: 0 done, 1 the host failed or the text could not be written, 2 wrong use.
int print_or_explain(const char* command, const Result<std::string>& text);

}  // namespace vmm::tool
