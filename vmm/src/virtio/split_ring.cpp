#include "virtio/split_ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "support/assert.hpp"
#include "virtio/ring_layout.hpp"

namespace vmm::virtio {
namespace {

using vpmu::GuestPhysical;

constexpr std::uint16_t max_entries = 32768;

/// Follows descriptor chains and records where a device may write. A correct driver has each descriptor in one chain,
/// and no more in an indirect table than in the ring. Beyond that, everything counts as written.
class ChainWalk {
 public:
  ChainWalk(const Ring& ring, const GuestMemory& memory) : ring_{ring}, memory_{&memory}, left_{ring.size} {}

  /// False if it is not known where the device may write.
  bool follow(std::uint16_t head) {
    for (std::uint16_t index = head;;) {
      const auto descriptor = descriptor_at(ring_.descriptors, index, ring_.size);
      if (!descriptor || left_-- == 0) return false;
      if ((descriptor->flags & descriptor_indirect) != 0) {
        if (!follow_table(*descriptor)) return false;
      } else {
        keep(*descriptor);
      }
      if ((descriptor->flags & descriptor_next) == 0) return true;
      index = descriptor->next;
    }
  }
  void keep(GuestPhysical at, std::uint64_t bytes) {
    for (const MemoryRange& range : memory_->ranges()) {
      const std::uint64_t end = range.first.value() + range.bytes;
      if (at.value() >= end || bytes == 0) continue;
      const std::uint64_t from = std::max(at.value(), range.first.value());
      const std::uint64_t to = at.value() + std::min(bytes, end - at.value());
      if (from < to) found_.push_back({.first = GuestPhysical{from}, .bytes = to - from});
    }
  }
  /// The ranges, none of which overlaps another: a driver may name the same gigabytes in each descriptor.
  std::vector<MemoryRange> take_found() {
    std::ranges::sort(found_, {}, &MemoryRange::first);
    std::vector<MemoryRange> apart;
    for (const MemoryRange& range : found_) {
      const std::uint64_t end = range.first.value() + range.bytes;
      if (apart.empty() || apart.back().first.value() + apart.back().bytes <= range.first.value())
        apart.push_back(range);
      else
        apart.back().bytes = std::max(apart.back().bytes, end - apart.back().first.value());
    }
    return apart;
  }

 private:
  [[nodiscard]] std::optional<Descriptor> descriptor_at(GuestPhysical table, std::uint32_t index,
                                                        std::uint32_t count) const {
    Descriptor descriptor{};
    if (index >= count || !memory_->read(table + std::uint64_t{index} * sizeof descriptor,
                                         std::as_writable_bytes(std::span{&descriptor, 1})))
      return std::nullopt;
    return descriptor;
  }
  bool follow_table(const Descriptor& table) {
    const auto count = static_cast<std::uint32_t>(table.bytes / sizeof(Descriptor));
    std::uint32_t left = ring_.size;
    for (std::uint32_t index = 0;;) {
      const auto descriptor = descriptor_at(GuestPhysical{table.address}, index, count);
      if (!descriptor || left-- == 0 || (descriptor->flags & descriptor_indirect) != 0) return false;
      keep(*descriptor);
      if ((descriptor->flags & descriptor_next) == 0) return true;
      index = descriptor->next;
    }
  }
  void keep(const Descriptor& descriptor) {
    if ((descriptor.flags & descriptor_write) != 0) keep(GuestPhysical{descriptor.address}, descriptor.bytes);
  }

  const Ring& ring_;
  const GuestMemory* memory_;
  std::uint32_t left_;
  std::vector<MemoryRange> found_;
};

}  // namespace

Result<void> check_ring(const Ring& ring, const GuestMemory& memory) {
  struct Part {
    const char* name;
    GuestPhysical at;
    std::uint64_t bytes, alignment;
  };
  if (!std::has_single_bit(ring.size) || ring.size > max_entries)
    return host_error(fmt::format("the guest's driver set up a queue of {} entries", ring.size), 0,
                      "the guest's driver is broken");
  const std::uint64_t size = ring.size;
  for (const Part& part : {Part{"descriptors", ring.descriptors, size * sizeof(Descriptor), 16},
                           Part{"available ring", ring.available, available_bytes(size), 2},
                           Part{"used ring", ring.used, used_bytes(size), 4}}) {
    if (part.at.value() % part.alignment != 0 || memory.bytes_at(part.at, part.bytes).empty())
      return host_error(
          fmt::format("the guest's driver set up a queue with its {} at {:#x}, which is not in RAM or not "
                      "a multiple of {}",
                      part.name, part.at.value(), part.alignment),
          0, "the guest's driver is broken");
  }
  return {};
}

std::uint16_t SplitRing::available() const {
  return memory_->load<std::uint16_t>(ring_.available + ring_index_offset).value_or(0);
}

std::uint16_t SplitRing::used() const {
  return memory_->load<std::uint16_t>(ring_.used + ring_index_offset).value_or(0);
}

void SplitRing::clear_used() const {
  VMM_ASSERT(memory_->store<std::uint16_t>(ring_.used, 0));
  VMM_ASSERT(memory_->store<std::uint16_t>(ring_.used + ring_index_offset, 0));
  const std::vector<std::byte> nothing(ring_.size * used_entry_bytes);
  VMM_ASSERT(memory_->write(ring_.used + ring_entries_offset, nothing));
}

bool SplitRing::was_used() const {
  std::vector<std::byte> entries(ring_.size * used_entry_bytes);
  VMM_ASSERT(memory_->read(ring_.used + ring_entries_offset, entries));
  return used() != 0 || std::ranges::any_of(entries, [](std::byte one) { return one != std::byte{}; });
}

std::optional<std::vector<MemoryRange>> SplitRing::written(std::uint16_t first, std::uint16_t count) const {
  VMM_ASSERT(count <= ring_.size);
  const auto all = memory_->ranges();
  ChainWalk walk{ring_, *memory_};
  bool makes_sense = true;
  for (std::uint16_t index = 0; index < count; ++index) {
    const std::uint64_t slot = static_cast<std::uint16_t>(first + index) % ring_.size;
    const auto id = memory_->load<std::uint32_t>(ring_.used + ring_entries_offset + slot * used_entry_bytes);
    if (!id || *id >= ring_.size) return std::nullopt;
    makes_sense = makes_sense && walk.follow(static_cast<std::uint16_t>(*id));
  }
  if (!makes_sense) return std::vector<MemoryRange>{all.begin(), all.end()};
  walk.keep(ring_.used, used_bytes(ring_.size));
  return walk.take_found();
}

}  // namespace vmm::virtio
