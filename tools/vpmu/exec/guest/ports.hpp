#pragma once
#include <sys/types.h>

#include <string>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// The kernel's announcements of new devices. Those that come after create() are queued until wait().
class Announcements {
 public:
  /// Fails if the kernel has no network, because the announcements come through a netlink socket.
  static Result<Announcements> create();
  /// Waits for the next announcement; false if the guest's clock reaches `deadline` first (in units of now()).
  bool wait(long deadline);

 private:
  explicit Announcements(Fd socket) : socket_{std::move(socket)} {}
  Fd socket_;
};

/// Opens the port of a virtio console with this name, non-blocking, once the host has opened its side. Fails if
/// that does not happen within some seconds.
Result<Fd> open_port(const std::string& name, Announcements& announcements);

/// The fields, each with its NUL, that the host sends on such a port, up to an empty one. Waits for ever. Fails if the
/// host closes the port before.
Result<std::string> read_port(const Fd& port);

}  // namespace vmm::tool::guest
