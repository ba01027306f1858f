#pragma once
#include <functional>
#include <string_view>

#include "exec/control_lines.hpp"
#include "kvm/fd.hpp"

namespace vmm::tool::guest {

/// Writes all of it, as fast as the host takes it; false when the host has closed the port.
bool write_to_port(int port, std::string_view text);

/// What is said with the host. Before the port is there, it is the kernel's log that is told.
class Control {
 public:
  void attach(Fd port) { port_ = std::move(port); }
  [[nodiscard]] int port() const { return port_.get(); }
  /// Whether the host has closed the port: nobody waits for this machine any more.
  [[nodiscard]] bool gone() const { return gone_; }
  void say(const GuestLine& line);
  void say(const Error& error);
  /// Takes what has arrived.
  void listen(const std::function<void(const HostLine&)>& take);
  /// Until the host lets the machine go.
  void wait_for_off();

 private:
  Fd port_;
  LineBuffer lines_;
  bool gone_{};
};

}  // namespace vmm::tool::guest
