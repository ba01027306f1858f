#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu ctl` to the command line: sends a request to a running machine over its control socket. When it is given,
/// parsing prints the reply and sets `exit_code`, which must live as long as `app`: 0 done, 1 no machine or it refused.
void add_ctl(Command& app, int& exit_code);

}  // namespace vmm::tool
