#pragma once
#include <functional>
#include <string_view>

#include "exec/control_lines.hpp"
#include "kvm/fd.hpp"

namespace vmm::tool::guest {

/// Writes all of the text, as fast as the host takes it; false when the host has closed the port.
bool write_to_port(int port, std::string_view text);

/// The exchange of lines with the host. Before the port is open, lines go to the kernel's log.
class Control {
 public:
  void attach(Fd port) { port_ = std::move(port); }
  [[nodiscard]] int port() const { return port_.get(); }
  /// Whether the host has closed the port: then nobody waits for this machine any more.
  [[nodiscard]] bool gone() const { return gone_; }
  void say(const GuestLine& line);
  void say(const Error& error);
  /// Hands over each line that has arrived.
  void listen(const std::function<void(const HostLine&)>& take);
  /// Waits until the host permits the power-off, or is gone.
  void wait_for_off();

 private:
  Fd port_;
  LineBuffer lines_;
  bool gone_{};
};

}  // namespace vmm::tool::guest
