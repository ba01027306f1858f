#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu events` to the command line. When it is chosen, parsing prints the listing, or one line about what is
/// wrong on standard error, and sets `exit_code`: 0 done, 1 the output could not be written, 2 unknown model or source.
/// `exit_code` must live as long as `app`.
void add_events(Command& app, int& exit_code);

}  // namespace vmm::tool
