#pragma once
#include <array>
#include <cstdint>
#include <string_view>

/// The messages of vhost-user, as in QEMU's docs/interop/vhost-user.rst: little-endian, over a Unix socket.
namespace vmm::virtio::vhost_user {

/// What the front end asks for.
enum class Request : std::uint32_t {
  get_features = 1,
  set_features = 2,
  set_owner = 3,
  set_mem_table = 5,
  set_vring_num = 8,
  set_vring_addr = 9,
  set_vring_base = 10,
  get_vring_base = 11,
  set_vring_kick = 12,
  set_vring_call = 13,
  get_protocol_features = 15,
  set_protocol_features = 16,
  get_queue_num = 17,
  set_vring_enable = 18,
  get_config = 24,
  set_config = 25,
};

/// The request's name in the protocol's text.
constexpr std::string_view name_of(Request request) {
  switch (request) {
    case Request::get_features: return "GET_FEATURES";
    case Request::set_features: return "SET_FEATURES";
    case Request::set_owner: return "SET_OWNER";
    case Request::set_mem_table: return "SET_MEM_TABLE";
    case Request::set_vring_num: return "SET_VRING_NUM";
    case Request::set_vring_addr: return "SET_VRING_ADDR";
    case Request::set_vring_base: return "SET_VRING_BASE";
    case Request::get_vring_base: return "GET_VRING_BASE";
    case Request::set_vring_kick: return "SET_VRING_KICK";
    case Request::set_vring_call: return "SET_VRING_CALL";
    case Request::get_protocol_features: return "GET_PROTOCOL_FEATURES";
    case Request::set_protocol_features: return "SET_PROTOCOL_FEATURES";
    case Request::get_queue_num: return "GET_QUEUE_NUM";
    case Request::set_vring_enable: return "SET_VRING_ENABLE";
    case Request::get_config: return "GET_CONFIG";
    case Request::set_config: return "SET_CONFIG";
  }
  return "?";
}

/// VHOST_USER_F_PROTOCOL_FEATURES: a bit among the device's features that is not a feature of the device.
inline constexpr std::uint64_t f_protocol_features = 1ULL << 30U;

/// Bits of GET_PROTOCOL_FEATURES.
inline constexpr std::uint64_t protocol_multiple_queues = 1ULL << 0U;
inline constexpr std::uint64_t protocol_reply_ack = 1ULL << 3U;
inline constexpr std::uint64_t protocol_configuration = 1ULL << 9U;

/// Header::flags: the version in bits 1:0.
inline constexpr std::uint32_t version_mask = 3, version = 1;
inline constexpr std::uint32_t flag_reply = 1U << 2U, flag_need_reply = 1U << 3U;

/// Precedes each message.
struct Header {
  std::uint32_t request, flags, size;
};
/// SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ENABLE, and GET_VRING_BASE both ways.
struct RingState {
  std::uint32_t index, number;
};
/// SET_VRING_ADDR. Addresses are the front end's own, as in MemoryRegion::user_address.
struct RingAddresses {
  std::uint32_t index, flags;
  std::uint64_t descriptors, used, available, log;
};
/// SET_MEM_TABLE: one range of the guest's RAM; its descriptor is sent along.
struct MemoryRegion {
  std::uint64_t guest_address, bytes, user_address, file_offset;
};
/// SET_MEM_TABLE.
struct MemoryTable {
  std::uint32_t regions, padding;
  std::array<MemoryRegion, 2> region;
};
/// GET_CONFIG and SET_CONFIG; followed by `size` bytes of the configuration space.
struct ConfigurationHeader {
  std::uint32_t offset, size, flags;
};
/// The most bytes of a configuration space that a message can carry.
inline constexpr std::uint32_t max_configuration = 256;

static_assert(sizeof(Header) == 12 && sizeof(RingState) == 8 && sizeof(RingAddresses) == 40);
static_assert(sizeof(MemoryTable) == 8 + 2 * 32 && sizeof(ConfigurationHeader) == 12);

}  // namespace vmm::virtio::vhost_user
