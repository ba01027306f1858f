#pragma once

namespace vmm::tool {

class Command;

/// How `vpmu stat --compare` ends where a count rose over its limit, and the command has ended with 0.
inline constexpr int stat_rose = 3;

/// Adds `vpmu stat` to the command line. When it is chosen, parsing runs the command, once for each pass, and sets
/// `exit_code`, which must live as long as `app`. Failures are one line on standard error.
void add_stat(Command& app, int& exit_code);

}  // namespace vmm::tool
