#pragma once
#include <cstdint>

/// How a split virtqueue lies in memory. Virtio 1.2 2.7.5, 2.7.6, 2.7.8.
namespace vmm::virtio {

struct Descriptor {
  std::uint64_t address{};
  std::uint32_t bytes{};
  std::uint16_t flags{}, next{};
};
inline constexpr std::uint16_t descriptor_next = 1, descriptor_write = 2, descriptor_indirect = 4;

/// In the available and the used ring, flags come first, then the index and the entries.
inline constexpr std::uint64_t ring_index_offset = 2, ring_entries_offset = 4;
inline constexpr std::uint64_t available_entry_bytes = 2, used_entry_bytes = 8;
/// After the entries, each ring has one more word, for VIRTIO_F_EVENT_IDX.
constexpr std::uint64_t available_bytes(std::uint64_t size) {
  return ring_entries_offset + size * available_entry_bytes + 2;
}
constexpr std::uint64_t used_bytes(std::uint64_t size) { return ring_entries_offset + size * used_entry_bytes + 2; }

}  // namespace vmm::virtio
