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

/// How a machine is tied to the world.
struct SessionOptions {
  std::string control_path{};               ///< Unix socket to serve; empty = none.
  std::string console{"stdio"};             ///< "stdio", or the path of a file that takes the output.
  std::chrono::duration<double> timeout{};  ///< The longest that the machine may run; 0: no limit.
  /// Where the machine is written to once a processor has run for MachineConfig::most_ticks (WholeFile::descriptor());
  /// then it stops. Null: it only stops. Must outlive the session.
  const Fd* save_to{};
  std::function<Result<void>()>
      starting{};  ///< Called once the machine is made, before it runs; a failure ends the session. May be empty.
  /// What takes rights away that the machine does not need. Each may be empty; a failure ends the session.
  struct Confinement {
    std::function<Result<void>()> process{};  ///< When everything is open, and before the vCPUs' threads are there.
    std::function<Result<void>()> session{};  ///< On the session's thread, once they are.
    std::function<Result<void>()> vcpu{};     ///< On each vCPU's thread, before the guest's first instruction.
    bool removes_socket{};                    ///< Of the control socket's file; the session may not.
  } confinement{};
};

/// What is left when a session has ended.
struct SessionEnd {
  StopReason reason;
  std::optional<Error> failure;  ///< With StopReason::host_failure, and when SessionOptions::save_to was not written.
  MachineStatistics statistics;
  bool saved{};                   ///< To SessionOptions::save_to, which is to be finished.
  BoundedWriter::Totals console;  ///< What became of the guest's output.
};

/// Makes a machine, runs it until it stops and cleans up: console on the terminal in raw mode (Ctrl-A X quits), SIGINT,
/// SIGTERM, SIGHUP, SIGQUIT, SIGPIPE and a console whose reader has gone stop it, the control socket answers. The
/// terminal is restored and the socket removed however it ends. A reader of the console that is slow never holds it up:
/// see BoundedWriter. Input is taken from a terminal or a pipe. Blocks the calling thread; one session at a time.
Result<SessionEnd> run_session(const MachineConfig& config, const SessionOptions& options, Log& log);

}  // namespace vmm
