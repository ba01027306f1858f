#pragma once
#include <optional>
#include <vector>

#include "memory/guest_memory.hpp"
#include "virtio/device.hpp"
#include "virtio/vhost_user_channel.hpp"

namespace vmm::virtio {

/// The front end's side of a vhost-user connection. The other side is a daemon that implements a virtio device and
/// accesses the guest's RAM by itself. Most calls may wait for the daemon, for VhostUserPeer::patience at most; each
/// error names the daemon. One thread at a time.
class VhostUser {
 public:
  /// eventfds of a queue: `kick` notifies the device, `call` the driver.
  struct QueueEvents {
    int kick, call;
    std::uint16_t first{};  ///< The number of the next buffer.
  };

  /// Negotiates features with the back end. `memory` must be GuestBacking::shared and outlive this object. Fails if the
  /// back end does not speak the protocol, or is no device of virtio 1.
  static Result<VhostUser> connect(VhostUserPeer peer, const GuestMemory& memory);

  /// VhostUserChannel::give_up_when().
  void give_up_when(int interrupt) { channel_.give_up_when(interrupt); }

  /// What the device offers.
  [[nodiscard]] std::uint64_t features() const { return features_; }
  /// The maximum number of queues of the back end; empty if it does not say.
  [[nodiscard]] std::optional<std::uint64_t> queues() const { return queues_; }

  /// Reads the first bytes of the device's configuration space, at most 256: some back ends can only read it as a
  /// whole, from its first byte.
  Result<void> read_configuration(std::span<std::byte> first_bytes);
  Result<void> write_configuration(std::uint32_t offset, std::span<const std::byte> bytes);

  /// Gives the device its rings, one for each of `events`, and starts it. The rings come from the driver and are
  /// checked: if one is not in RAM, that is an error, and nothing is started. After a failure nothing runs.
  Result<void> start(const DriverSetup& setup, std::span<const QueueEvents> events);
  /// Stops the device: it no longer accesses its rings if this returns without an error.
  Result<void> stop();

  [[nodiscard]] const VhostUserChannel& channel() const { return channel_; }

 private:
  VhostUser(VhostUserPeer peer, const GuestMemory& memory) : channel_{std::move(peer)}, memory_{&memory} {}
  Result<void> negotiate();
  Result<void> negotiate_protocol();
  Result<void> send_memory();
  Result<void> start_ring(std::uint32_t index, const Ring& ring, const QueueEvents& events);
  [[nodiscard]] std::uint64_t address_here(vpmu::GuestPhysical at) const;
  template <class Payload>
  Result<void> set(vhost_user::Request request, const Payload& payload, std::span<const int> descriptors = {}) {
    return channel_.tell(request, std::as_bytes(std::span{&payload, 1}), acks_, descriptors);
  }
  Result<std::uint64_t> get(vhost_user::Request request);

  VhostUserChannel channel_;
  const GuestMemory* memory_;
  std::uint64_t features_{}, protocol_{};
  std::optional<std::uint64_t> queues_;
  VhostUserChannel::Ack acks_{VhostUserChannel::Ack::none};
  bool has_protocol_features_{false};
  std::vector<std::uint32_t> started_;  ///< Indices of rings that the back end may work in.
};

}  // namespace vmm::virtio
