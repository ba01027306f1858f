#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "control/bounded_writer.hpp"
#include "machine/config.hpp"
#include "machine/machine.hpp"
#include "machine/statistics.hpp"
#include "support/log.hpp"
#include "support/result.hpp"

namespace vmm {

/// How a machine is connected to the host.
struct SessionOptions {
  std::string control_path{};               ///< Unix socket to serve; empty = none.
  std::string console{"stdio"};             ///< "stdio", or the path of a file that takes the output.
  std::chrono::duration<double> timeout{};  ///< The longest that the machine may run; 0: no limit.
  /// Once a processor has run for MachineConfig::max_ticks, the machine is saved to this file
  /// (WholeFile::descriptor()) and stops. Null: it only stops. Must outlive the session.
  const Fd* save_to{};
  std::function<Result<void>()>
      starting{};  ///< Called once the machine is made, before it runs; a failure ends the session. May be empty.
  /// Functions that give up rights that the machine does not need. Each may be empty; a failure ends the session.
  struct Confinement {
    std::function<Result<void>()> process{};  ///< When everything is open, before the vCPUs' threads exist.
    std::function<Result<void>()> session{};  ///< On the session's thread, once they exist.
    std::function<Result<void>()> vcpu{};     ///< On each vCPU's thread, before the guest's first instruction.
    PerfHostFactory perf_hosts{};             ///< As Machine::Hooks has it.
    bool removes_socket{};                    ///< Somebody else removes the control socket's file: the session may not.
  } confinement{};
};

/// The outcome of a session.
struct SessionEnd {
  StopReason reason;
  std::optional<Error> failure;  ///< With StopReason::host_failure, and when SessionOptions::save_to was not written.
  MachineStatistics statistics;
  bool saved{};                   ///< To SessionOptions::save_to, which the caller finishes.
  BoundedWriter::Totals console;  ///< What became of the guest's output.
};

/// Makes a machine, runs it until it stops and cleans up. The console is on the terminal in raw mode; the control
/// socket is served. Ctrl-A X, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE and the loss of the console's reader stop the
/// machine. The terminal is restored and the socket removed however it ends. A slow reader of the console delays
/// nothing (BoundedWriter). Input is taken from a terminal or a pipe. Blocks the calling thread; one session at a time.
Result<SessionEnd> run_session(const MachineConfig& config, const SessionOptions& options, Log& log);

}  // namespace vmm
