#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/machine_options.hpp"

namespace vmm::tool {

class Command;

/// A directory of the host that the command can write to, at another path in the guest.
struct ExecDirectory {
  std::string host, guest;
};

/// What to run in a guest, and how.
struct ExecArguments : MachineOptions {
  ExecArguments() {
    memory = "1G";
    time = "auto";
    counts_one_command = true;
  }
  const char* name{"vpmu exec"};  ///< Before each line of ours on standard error.
  std::vector<std::string> command;
  std::string kernel, modules, append, root{"/"}, root_socket, console;
  std::vector<std::string> writable, disks, disk_sockets, more_modules;
  bool special_files{};  ///< The guest may leave setuid files and device nodes in the directories of `writable`.
  bool net{};
  std::string net_socket;
  std::vector<ExecDirectory> elsewhere;
  bool no_cache{};
  bool ends_by_signal{};  ///< --timeout first sends SIGTERM to the command, and stops the machine later.
  bool drops_output{};    ///< Discards what the command writes to standard output and error.
  /// Called by run_exec() once the machine is no more, if the guest has told how the command ended: it did run.
  std::function<void()> when_ended;
  /// Whether the command gets this "NAME=VALUE" of our environment; empty: all but what belongs to the desktop session.
  std::function<bool(std::string_view)> passes_variable;
};

/// What --no-cache does, for the help of each command that has it.
inline constexpr const char* no_cache_help =
    "boot the guest, and keep no booted guest for the next run (see `vpmu cache`)";

/// Exit codes of `vpmu exec` that are not the command's own; they are those of env(1) and timeout(1).
enum ExecExitCode : int {
  exec_timed_out = 124,
  exec_failed = 125,        ///< vpmu could not run the command, or the guest could not.
  exec_signal_first = 128,  ///< Plus the number of the signal that ended the command.
};

/// Runs the command to its end and returns the exit code. Only once in a process, because the process enters the jail.
/// Prints a failure as one line on standard error, with the last messages of the guest's kernel.
int run_exec(ExecArguments& arguments);

/// Adds the options of a command that calls run_exec(), and the positional `command`.
void add_exec_options(Command& exec, const std::shared_ptr<ExecArguments>& arguments);

/// Adds `vpmu exec` to the command line. When it is given, parsing runs the command to its end and sets `exit_code`,
/// which must live as long as `app`. Failures are printed as run_exec() does.
void add_exec(Command& app, int& exit_code);

}  // namespace vmm::tool
