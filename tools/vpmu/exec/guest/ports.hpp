#pragma once
#include <sys/types.h>

#include <string>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool::guest {

/// The kernel's announcements of devices. What is announced from its creation on is kept until it is waited for.
class Announcements {
 public:
  /// Fails where the kernel has no network, which brings them.
  static Result<Announcements> create();
  /// Waits for the next one; false when the guest's clock reaches `deadline` (now()'s) before.
  bool wait(long deadline);

 private:
  explicit Announcements(Fd socket) : socket_{std::move(socket)} {}
  Fd socket_;
};

/// The port of a virtio console with this name, opened without blocking, once the host has opened its side. Fails where
/// it is not there within some seconds.
Result<Fd> open_port(const std::string& name, Announcements& announcements);

}  // namespace vmm::tool::guest
