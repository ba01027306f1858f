#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "virtio/device.hpp"

namespace vmm::virtio {

/// Whether each part of the ring lies in RAM as a whole, and at an address that it may have. Virtio 1.2 2.7.
Result<void> check_ring(const Ring& ring, const GuestMemory& memory);

/// A look into a ring that others fill: the driver, which may write anything at any time, and a device elsewhere.
/// The ring is one that check_ring() has let pass.
class SplitRing {
 public:
  SplitRing(const Ring& ring, const GuestMemory& memory) : ring_{ring}, memory_{&memory} {}

  /// How many buffers the driver has ever made available, modulo 2^16.
  [[nodiscard]] std::uint16_t available() const;
  /// How many the device has given back, likewise.
  [[nodiscard]] std::uint16_t used() const;
  [[nodiscard]] std::uint16_t size() const { return ring_.size; }
  /// As a device has it that begins: a driver that leaves something else there would confuse it.
  void clear_used() const;

  /// Where the device may have written for the `count` buffers that it gave back from number `first` on, the used ring
  /// among it: more than once in places, and all of RAM where the chains make no sense. At most size() buffers. Empty
  /// where the used ring names a buffer that there cannot be.
  [[nodiscard]] std::optional<std::vector<MemoryRange>> written(std::uint16_t first, std::uint16_t count) const;

 private:
  Ring ring_;
  const GuestMemory* memory_;
};

}  // namespace vmm::virtio
