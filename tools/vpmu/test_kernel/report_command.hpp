#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu report` to the command line: what is done with reports of `vpmu test-kernel`. Its exit codes are those.
/// `exit_code` must live as long as `app`.
void add_report(Command& app, int& exit_code);

}  // namespace vmm::tool
