#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu report` to the command line, which shows and merges reports of `vpmu test-kernel`. The exit codes are the
/// same. `exit_code` must live as long as `app`.
void add_report(Command& app, int& exit_code);

}  // namespace vmm::tool
