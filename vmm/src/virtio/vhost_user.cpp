#include "virtio/vhost_user.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "support/assert.hpp"
#include "virtio/split_ring.hpp"

namespace vmm::virtio {

using namespace vhost_user;

Result<VhostUser> VhostUser::connect(VhostUserPeer peer, const GuestMemory& memory) {
  VMM_ASSERT(memory.descriptor() != nullptr);
  VhostUser front_end{std::move(peer), memory};
  VMM_TRY(front_end.negotiate());
  return front_end;
}

Result<std::uint64_t> VhostUser::get(Request request) {
  std::uint64_t value = 0;
  VMM_TRY(channel_.ask(request, {}, std::as_writable_bytes(std::span{&value, 1})));
  return value;
}

Result<void> VhostUser::negotiate() {
  VMM_ASSIGN(const std::uint64_t offered, get(Request::get_features));
  has_protocol_features_ = (offered & f_protocol_features) != 0;
  features_ = offered & ~f_protocol_features;
  if ((features_ & f_version_1) == 0)
    return Failure{
        channel_.failed_peer(fmt::format("GET_FEATURES: the device offers {:#x}, without VIRTIO_F_VERSION_1", offered),
                             "use a newer version of the daemon")};
  if (has_protocol_features_) VMM_TRY(negotiate_protocol());
  return channel_.tell(Request::set_owner, {}, acks_);
}

Result<void> VhostUser::negotiate_protocol() {
  VMM_ASSIGN(const std::uint64_t offered, get(Request::get_protocol_features));
  protocol_ = offered & (protocol_multiple_queues | protocol_reply_ack | protocol_configuration);
  // Without an acknowledgement: that there are any is only agreed upon by this message.
  VMM_TRY(set(Request::set_protocol_features, protocol_));
  if ((protocol_ & protocol_reply_ack) != 0) acks_ = VhostUserChannel::Ack::wanted;
  if ((protocol_ & protocol_multiple_queues) != 0) {
    VMM_ASSIGN(queues_, get(Request::get_queue_num));
  }
  return {};
}

Result<void> VhostUser::read_configuration(std::span<std::byte> first_bytes) {
  VMM_ASSERT(first_bytes.size() <= max_configuration);
  if ((protocol_ & protocol_configuration) == 0)
    return Failure{channel_.failed_peer("the daemon does not tell the device's configuration",
                                        "use a version of it that knows VHOST_USER_PROTOCOL_F_CONFIG")};
  const ConfigurationHeader asked{.offset = 0, .size = static_cast<std::uint32_t>(first_bytes.size()), .flags = 0};
  std::array<std::byte, sizeof asked + max_configuration> payload{};
  std::memcpy(payload.data(), &asked, sizeof asked);
  const auto message = std::span{payload}.first(sizeof asked + first_bytes.size());
  VMM_TRY(channel_.ask(Request::get_config, message, message));
  ConfigurationHeader answered{};
  std::memcpy(&answered, message.data(), sizeof answered);
  if (answered.offset != asked.offset || answered.size != asked.size)
    return Failure{channel_.failed_peer(fmt::format("GET_CONFIG: an answer about {} bytes from {} instead of {} from 0",
                                                    answered.size, answered.offset, asked.size),
                                        "use another version of the daemon")};
  std::copy_n(message.begin() + sizeof asked, first_bytes.size(), first_bytes.begin());
  return {};
}

Result<void> VhostUser::write_configuration(std::uint32_t offset, std::span<const std::byte> bytes) {
  if ((protocol_ & protocol_configuration) == 0 || offset > max_configuration ||
      bytes.size() > max_configuration - offset)
    return {};  // no writable place, as with any device
  const ConfigurationHeader header{.offset = offset, .size = static_cast<std::uint32_t>(bytes.size()), .flags = 0};
  std::array<std::byte, sizeof header + max_configuration> payload{};
  std::memcpy(payload.data(), &header, sizeof header);
  std::copy(bytes.begin(), bytes.end(), payload.begin() + sizeof header);
  return channel_.tell(Request::set_config, std::span{payload}.first(sizeof header + bytes.size()), acks_);
}

std::uint64_t VhostUser::address_here(vpmu::GuestPhysical at) const {
  return reinterpret_cast<std::uintptr_t>(memory_->bytes_at(at, 1).data());
}

Result<void> VhostUser::send_memory() {
  MemoryTable table{};
  std::array<int, 2> descriptors{};
  std::uint64_t offset = 0;
  for (const MemoryRange& range : memory_->ranges()) {
    descriptors[table.regions] = memory_->descriptor()->get();
    table.region[table.regions++] = {.guest_address = range.first.value(),
                                     .bytes = range.bytes,
                                     .user_address = address_here(range.first),
                                     .file_offset = offset};
    offset += range.bytes;
  }
  const auto payload = std::as_bytes(std::span{&table, 1});
  const std::size_t unused = (table.region.size() - table.regions) * sizeof(MemoryRegion);
  return channel_.tell(Request::set_mem_table, payload.first(payload.size() - unused), acks_,
                       std::span{descriptors}.first(table.regions));
}

Result<void> VhostUser::start_ring(std::uint32_t index, const Ring& ring, const QueueEvents& events) {
  started_.push_back(index);
  VMM_TRY(set(Request::set_vring_num, RingState{.index = index, .number = ring.size}));
  VMM_TRY(set(Request::set_vring_base, RingState{.index = index, .number = events.first}));
  VMM_TRY(set(Request::set_vring_addr, RingAddresses{.index = index,
                                                     .flags = 0,
                                                     .descriptors = address_here(ring.descriptors),
                                                     .used = address_here(ring.used),
                                                     .available = address_here(ring.available),
                                                     .log = 0}));
  const std::uint64_t which = index;
  VMM_TRY(set(Request::set_vring_kick, which, std::span{&events.kick, 1}));
  VMM_TRY(set(Request::set_vring_call, which, std::span{&events.call, 1}));
  // Without protocol features a ring is enabled from its start.
  if (!has_protocol_features_) return {};
  return set(Request::set_vring_enable, RingState{.index = index, .number = 1});
}

Result<void> VhostUser::start(const DriverSetup& setup, std::span<const QueueEvents> events) {
  VMM_ASSERT(setup.rings.size() == events.size() && started_.empty());
  for (const auto& ring : setup.rings)
    if (ring) VMM_TRY(check_ring(*ring, *memory_));
  const auto start_all = [&]() -> Result<void> {
    VMM_TRY(set(Request::set_features, setup.features | (has_protocol_features_ ? f_protocol_features : 0)));
    VMM_TRY(send_memory());
    for (std::uint32_t index = 0; index < setup.rings.size(); ++index)
      if (setup.rings[index]) VMM_TRY(start_ring(index, *setup.rings[index], events[index]));
    return {};
  };
  auto outcome = start_all();
  if (!outcome) (void)stop();  // the first error tells what went wrong
  return outcome;
}

Result<void> VhostUser::stop() {
  Result<void> outcome;
  for (const std::uint32_t index : std::exchange(started_, {})) {
    const RingState which{.index = index, .number = 0};
    RingState answer{};
    auto stopped = channel_.ask(Request::get_vring_base, std::as_bytes(std::span{&which, 1}),
                                std::as_writable_bytes(std::span{&answer, 1}));
    if (stopped && answer.index != index)
      stopped = Failure{channel_.failed_peer(
          fmt::format("GET_VRING_BASE of queue {}: the answer is about queue {}", index, answer.index),
          "use another version of the daemon")};
    if (!stopped && outcome) outcome = std::move(stopped);
  }
  return outcome;
}

}  // namespace vmm::virtio
