#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "control/session.hpp"
#include "exec/control_lines.hpp"
#include "kvm/fd.hpp"

namespace vmm::tool {

/// How a command in a machine is connected to this process. The devices connect its streams.
struct ExecSessionOptions {
  Machine::Hooks::DeviceFactory make_devices{};
  Fd channel{};  ///< Our end of the port vpmu.control.
  /// The descriptor of the command's terminal, which is put into raw mode and whose size is passed on. -1: none.
  int terminal{-1};
  std::function<void(std::string_view)> console{};  ///< Gets the guest kernel's console; on vCPUs' threads.
  /// How much of the guest's output and error output has been passed on.
  std::function<WrittenLine()> passed_on{};
  /// Is given the function to call at the end of the command's input.
  std::function<void(std::function<void(std::uint64_t bytes)>)> when_input_ends{};
  /// Called once the machine is made, or restored: no failure before that can have run any of its code. May be empty.
  std::function<void()> when_made{};
  /// Is given the function to call, on a vCPU's thread, once the guest has booted and asks for its request.
  std::function<void(std::function<void()>)> when_ready{};
  /// Called then, on the session's thread; all vCPUs wait until it has saved the machine. May be empty.
  std::function<void(Machine& machine)> keep{};
  std::chrono::duration<double> timeout{};
  bool ends_by_signal{};  ///< When the time is over, the command gets SIGTERM, and some more seconds.
  SessionOptions::Confinement confinement{};
};

/// How a command's run ended.
struct ExecEnd {
  StopReason reason{};             ///< Of the machine.
  std::optional<Error> failure{};  ///< With StopReason::host_failure.
  MachineStatistics statistics{};
  bool started{};                  ///< The guest was about to execute the command.
  std::optional<int> exit_code{};  ///< Of a command that exited, or of an init that failed.
  std::optional<int> signal{};     ///< The signal that ended the command.
  std::string error{};             ///< What the guest could not do, in its words.
  bool ran_out{};                  ///< The time was over, and the command got SIGTERM.
};

/// Makes a machine and runs it until it stops. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 go to the command;
/// before the command has started, and at the third signal, the machine stops. Blocks the calling thread; one session
/// at a time.
Result<ExecEnd> run_exec_session(const MachineConfig& config, ExecSessionOptions options, Log& log);

}  // namespace vmm::tool
