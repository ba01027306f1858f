#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/machine_options.hpp"

namespace vmm::tool {

class Command;

/// A directory of the host's that the command can change, at another place in the guest.
struct ExecDirectory {
  std::string host, guest;
};

/// What to run in a guest, and how.
struct ExecArguments : MachineOptions {
  ExecArguments() {
    memory = "1G";
    counts_one_command = true;
  }
  const char* name{"vpmu exec"};  ///< Before each line of ours on standard error.
  std::vector<std::string> command;
  std::string kernel, modules, append, root{"/"}, root_socket, console;
  std::vector<std::string> writable, disks, disk_sockets, more_modules;
  bool net{};
  std::string net_socket;
  std::vector<ExecDirectory> elsewhere;
  bool drops_output{};  ///< What the command writes to standard output and error goes nowhere.
  /// Which of this process's environment the command has, of "NAME=VALUE"; empty: all but the desktop's.
  std::function<bool(std::string_view)> passes_variable;
};

/// Exit codes of `vpmu exec` when there is none of its command; they are those of env(1) and timeout(1).
enum ExecExitCode : int {
  exec_timed_out = 124,
  exec_failed = 125,        ///< We could not run it, or the guest could not.
  exec_signal_first = 128,  ///< And the signal that has ended the command.
};

/// Runs the command to its end and gives the exit code. Once in a process, which goes to jail for it. Failures are one
/// line on standard error, and what the guest's kernel said last.
int run_exec(ExecArguments& arguments);

/// Adds the options of a command that calls run_exec(), and the positional `command`.
void add_exec_options(Command& exec, const std::shared_ptr<ExecArguments>& arguments);

/// Adds `vpmu exec` to the command line. When it is chosen, parsing runs the command to its end and sets `exit_code`,
/// which must live as long as `app`. Failures are one line on standard error, and what the guest's kernel said last.
void add_exec(Command& app, int& exit_code);

}  // namespace vmm::tool
