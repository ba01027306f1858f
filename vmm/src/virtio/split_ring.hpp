#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "virtio/device.hpp"

namespace vmm::virtio {

/// Whether each part of the ring lies entirely in RAM, and at an address that the specification allows. Virtio 1.2 2.7.
Result<void> check_ring(const Ring& ring, const GuestMemory& memory);

/// Observes a ring that others fill: the driver, which may write anything at any time, and a device in another process.
/// The ring must have passed check_ring().
class SplitRing {
 public:
  SplitRing(const Ring& ring, const GuestMemory& memory) : ring_{ring}, memory_{&memory} {}

  /// How many buffers the driver has made available since the start, modulo 2^16.
  [[nodiscard]] std::uint16_t available() const;
  /// How many the device has returned, likewise.
  [[nodiscard]] std::uint16_t used() const;
  [[nodiscard]] std::uint16_t size() const { return ring_.size; }
  /// Clears the used ring, as a device expects it at its start: anything else left there would confuse it.
  void clear_used() const;
  /// Whether the device has returned a buffer since then, be it 2^16 of them.
  [[nodiscard]] bool was_used() const;

  /// Where the device may have written for the `count` buffers that it returned from number `first` on, including the
  /// used ring. No range overlaps another; all of RAM if the chains are invalid. At most size() buffers. Empty if the
  /// used ring names a buffer that cannot exist.
  [[nodiscard]] std::optional<std::vector<MemoryRange>> written(std::uint16_t first, std::uint16_t count) const;

 private:
  Ring ring_;
  const GuestMemory* memory_;
};

}  // namespace vmm::virtio
