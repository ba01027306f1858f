#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvm/fd.hpp"
#include "support/result.hpp"
#include "virtio/last_lines.hpp"
#include "virtio/vhost_user_messages.hpp"

namespace vmm::virtio {

/// A back end, and the connection to it.
struct VhostUserPeer {
  std::string name;                            ///< For messages: "virtiofsd for /srv".
  Fd socket{};                                 ///< Connected, of SOCK_STREAM.
  std::shared_ptr<LastLines> messages{};       ///< The daemon's standard error; null if not known.
  std::chrono::milliseconds patience{10'000};  ///< Time limit for each answer.
};

/// One connection of the vhost-user protocol: sends messages, and receives answers, which are checked before use. After
/// a first failure answers cannot be matched to requests any more: from then on every call fails at once.
/// One thread at a time, but failed_peer() and name(), which any thread may call.
class VhostUserChannel {
 public:
  explicit VhostUserChannel(VhostUserPeer peer) : peer_{std::move(peer)} {}

  /// From now on no call waits once this eventfd is readable, which it then stays.
  void give_up_when(int interrupt) { interrupt_ = interrupt; }

  enum class Ack { none, wanted };
  /// Sends; with Ack::wanted waits until the back end acknowledges.
  Result<void> tell(vhost_user::Request request, std::span<const std::byte> payload, Ack ack,
                    std::span<const int> descriptors = {});
  /// Sends, and waits for the answer, which must have the size of `answer`.
  Result<void> ask(vhost_user::Request request, std::span<const std::byte> payload, std::span<std::byte> answer);

  [[nodiscard]] int socket() const { return peer_.socket.get(); }
  [[nodiscard]] const std::string& name() const { return peer_.name; }
  [[nodiscard]] LastLines* messages() const { return peer_.messages.get(); }
  /// Whether a request has failed in a way that makes the connection unusable.
  [[nodiscard]] bool is_broken() const { return broken_.has_value(); }
  /// An error that names the back end and what happened, with the daemon's last messages.
  [[nodiscard]] Error failed_peer(const std::string& what, const std::string& advice, int system_errno = 0) const;
  /// The error for a connection that the back end has closed.
  [[nodiscard]] Error hung_up() const;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  Result<void> send(vhost_user::Request request, std::uint32_t flags, std::span<const std::byte> payload,
                    std::span<const int> descriptors, Deadline deadline);
  Result<void> receive(vhost_user::Request request, std::span<std::byte> answer, Deadline deadline);
  Result<void> receive_bytes(vhost_user::Request request, std::span<std::byte> bytes, Deadline deadline);
  Result<void> wait(vhost_user::Request request, short events, Deadline deadline);
  Failure broken(vhost_user::Request request, const std::string& seen, const std::string& advice, int why = 0);
  Failure closed(vhost_user::Request request, int why = 0);

  VhostUserPeer peer_;
  int interrupt_{-1};
  std::optional<Error> broken_;
};

}  // namespace vmm::virtio
