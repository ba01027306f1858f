#pragma once
#include <memory>
#include <string>

#include "control/protocol.hpp"
#include "support/log.hpp"
#include "support/result.hpp"

// Only Boost.Asio's name: its headers cost seconds of compile time.
namespace boost::asio {
class io_context;
}

namespace vmm {

/// A Unix socket that serves the control protocol, in an event loop. Its clients cannot keep each other waiting: there
/// are few at a time, and a new one takes the place of the one that has been idle for longest.
class ControlServer {
 public:
  /// `io` and `log` must outlive it, and nothing may run in `io` after its end.
  ControlServer(boost::asio::io_context& io, ControlHandlers handlers, Log& log);
  /// Removes the socket's file.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;
  ControlServer(ControlServer&&) = delete;
  ControlServer& operator=(ControlServer&&) = delete;

  /// Makes the socket, for this user only. A socket on which nobody listens any more is replaced. Fails with kind
  /// usage.
  Result<void> listen(const std::string& path);
  /// Somebody else removes the file.
  void leave_file();

 private:
  struct Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace vmm
