#pragma once
#include <optional>

#include "exec/guest/command.hpp"
#include "exec/guest/control.hpp"

namespace vmm::tool::guest {

/// From the command's start to its end: passes on its streams, and what the host says; collects processes that end.
class Session {
 public:
  /// SIGCHLD has to be blocked since before the command started.
  Session(Control& control, Command command) : control_{&control}, command_{std::move(command)} {}
  /// Until the command has ended, all other processes are gone, and all they wrote is at the ports; or until the host
  /// is gone. Tells the host how the command ended.
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
