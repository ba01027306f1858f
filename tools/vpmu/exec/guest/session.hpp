#pragma once
#include <optional>

#include "exec/guest/command.hpp"
#include "exec/guest/control.hpp"

namespace vmm::tool::guest {

/// The command's run: passes on its streams, obeys the host's lines, and reaps processes that end.
class Session {
 public:
  /// SIGCHLD must have been blocked since before the command started.
  Session(Control& control, Command command) : control_{&control}, command_{std::move(command)} {}
  /// Returns when the command has ended, all other processes are gone, and all their output is written to the ports; or
  /// when the host is gone. Tells the host how the command ended.
  Result<void> run();

 private:
  void wait(int signals);
  void take(const HostLine& line);
  void reap();
  void end_all();
  [[nodiscard]] bool is_passed_on() const;

  Control* control_;
  Command command_;
  std::optional<int> status_;  // as waitpid() gives it
};

}  // namespace vmm::tool::guest
