#pragma once

namespace vmm::tool {

class Command;

/// How `vpmu test-kernel` ends.
enum TestKernelExitCode : int {
  test_kernel_passed = 0,
  test_kernel_failed = 1,     ///< A check failed; with --baseline, one that had not failed before.
  test_kernel_usage = 2,      ///< Wrong options or files.
  test_kernel_cannot_run = 3  ///< No guest has run a check.
};

/// Adds `vpmu test-kernel` to the command line. When it is chosen, parsing runs it and sets `exit_code`, which must
/// live as long as `app`.
void add_test_kernel(Command& app, int& exit_code);

}  // namespace vmm::tool
