#pragma once

namespace vmm::tool {

class Command;

/// How `vpmu run` ends.
enum RunExitCode : int {
  run_power_off = 0,
  run_host_failure = 1,
  run_usage = 2,
  run_reset = 3,
  run_guest_panic = 4,
  run_triple_fault = 5,
  run_stopped_by_user = 6,
  run_time_limit = 7,
  run_guest_failed = 8,
};

/// Adds `vpmu run` to the command line. When it is chosen, parsing runs the machine to its end and sets `exit_code`,
/// which must live as long as `app`. Failures are one line on standard error.
void add_run(Command& app, int& exit_code);

}  // namespace vmm::tool
