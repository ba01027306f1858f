#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "virtio/device.hpp"

namespace vmm::virtio {

/// A piece of guest memory that a descriptor names; it was RAM when checked.
struct Piece {
  vpmu::GuestPhysical at;
  std::uint32_t bytes;
};

/// Buffers that the driver has made available together. Virtio 1.2 2.7.4.2.
struct Chain {
  std::uint16_t head{};
  std::vector<Piece> readable, writable;  ///< For the device to read, and to write.
};

/// How many chains a device has taken and given back, modulo 2^16.
struct QueueProgress {
  std::uint16_t taken{}, given{};
};

/// The device's side of a split virtqueue. The rings and all their contents come from a guest that may be hostile: each
/// word is read once and checked. Virtio 1.2 2.7. Not thread-safe.
class Queue {
 public:
  /// Fails as check_ring() does. `memory` must outlive it. `progress`: of one that it continues.
  static Result<Queue> open(const GuestMemory& memory, const Ring& ring, QueueProgress progress = {});
  [[nodiscard]] QueueProgress progress() const { return progress_; }
  [[nodiscard]] const Ring& ring() const { return ring_; }

  /// The next chain; empty if there is none. Fails on anything that a driver must not do; the queue is unusable then.
  [[nodiscard]] Result<std::optional<Chain>> next();
  /// Whether next() would return a chain or fail.
  [[nodiscard]] bool has_more() const;
  /// Returns a chain to the driver, after `written` bytes of it were written.
  void give_back(const Chain& chain, std::uint32_t written);
  /// Whether the driver wants an interrupt for the chains given back. Virtio 1.2 2.7.7.
  [[nodiscard]] bool wants_interrupt() const;

  /// Copy from the chain's readable pieces, from `offset` on, and into its writable ones. Return the number of bytes.
  std::size_t read(const Chain& chain, std::size_t offset, std::span<std::byte> out) const;
  std::size_t write(const Chain& chain, std::span<const std::byte> in) const;

 private:
  Queue(const GuestMemory& memory, const Ring& ring, QueueProgress progress)
      : memory_{&memory}, ring_{ring}, progress_{progress} {}
  [[nodiscard]] std::uint16_t available_index() const;

  const GuestMemory* memory_;
  Ring ring_;
  QueueProgress progress_;
};

/// The total size of some pieces.
[[nodiscard]] std::size_t total_bytes(std::span<const Piece> pieces);

/// Follows the chain from descriptor `head` of a ring. Fails on anything that a driver must not do: an index beyond the
/// ring, a loop, more than 2^32 bytes, a piece that is not RAM, a readable buffer after a writable one, f_indirect_desc
/// (never offered).
Result<Chain> walk_chain(const GuestMemory& memory, const Ring& ring, std::uint16_t head);

}  // namespace vmm::virtio
