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

/// How a command that runs in a machine is tied to the world. Its streams are the devices' business.
struct ExecSessionOptions {
  Machine::Hooks::DeviceFactory make_devices{};
  Fd channel{};  ///< Our end of the port vpmu.control.
  /// The descriptor of a terminal that the command has: it goes into raw mode, and its size is told. -1: none.
  int terminal{-1};
  std::function<void(std::string_view)> console{};  ///< What the guest's kernel says; on vCPUs' threads.
  /// What of the guest's output and error output has been passed on.
  std::function<WrittenLine()> passed_on{};
  /// Gives whom to tell of the end of the command's input.
  std::function<void(std::function<void(std::uint64_t bytes)>)> when_input_ends{};
  std::function<Result<void>()> starting{};  ///< As SessionOptions::starting.
  std::chrono::duration<double> timeout{};
  SessionOptions::Confinement confinement{};
};

/// What became of a command.
struct ExecEnd {
  StopReason reason{};             ///< Of the machine.
  std::optional<Error> failure{};  ///< With StopReason::host_failure.
  MachineStatistics statistics{};
  bool started{};                  ///< The guest was about to run it.
  std::optional<int> exit_code{};  ///< Of a command that has ended by itself, or an init that has failed.
  std::optional<int> signal{};     ///< That has ended the command.
  std::string error{};             ///< What the guest could not do, in its words.
};

/// Makes a machine and runs it until it stops. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 go to the command;
/// where that has not started, and at the third one, the machine stops. Blocks the calling thread; one session at a
/// time.
Result<ExecEnd> run_exec_session(const MachineConfig& config, ExecSessionOptions options, Log& log);

}  // namespace vmm::tool
