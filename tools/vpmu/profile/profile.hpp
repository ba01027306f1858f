#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu profile` to the command line. When it is chosen, parsing runs the command, makes the report and sets
/// `exit_code`, which must live as long as `app`. Failures are one line on standard error.
void add_profile(Command& app, int& exit_code);

}  // namespace vmm::tool
