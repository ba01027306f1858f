#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "devices/device_wires.hpp"
#include "snapshot/byte_stream.hpp"

namespace vmm {

/// A function's MSI-X table and its pending bits, which fill one page of a BAR. PCI Local Bus Specification 3.0, 6.8.2.
/// Not thread-safe.
class MsixTable {
 public:
  static constexpr std::uint32_t bytes = 4096;
  static constexpr std::uint32_t pending_offset = 0x800;
  static constexpr unsigned max_vectors = 128;  ///< What fits below the pending bits.

  explicit MsixTable(unsigned vectors);

  [[nodiscard]] unsigned vectors() const { return static_cast<unsigned>(entries_.size()); }
  /// Aligned accesses of four or eight bytes; others read as zeros and write nothing.
  void read(std::uint32_t offset, std::span<std::byte> out) const;
  void write(std::uint32_t offset, std::span<const std::byte> in);

  /// The capability's message control: bit 15 (MSI-X enable) and bit 14 (function mask).
  void set_control(std::uint16_t control);
  [[nodiscard]] bool enabled() const;

  /// The vector's message; empty while the vector is masked or MSI-X is off, or if there is no such vector.
  [[nodiscard]] std::optional<InterruptMessage> message(unsigned vector) const;
  /// Sets the vector's pending bit: an interrupt came while the vector was masked.
  void set_pending(unsigned vector);
  /// A vector whose pending interrupt can be sent now; clears its pending bit. Empty if there is none.
  [[nodiscard]] std::optional<unsigned> take_pending();
  /// The table and the pending bits; not the message control, which the capability has.
  void save(ByteWriter& out) const;
  void restore(ByteReader& in);

 private:
  struct Entry {
    std::uint32_t address_low{}, address_high{}, data{}, control{masked};
  };
  static constexpr std::uint32_t masked = 1;

  [[nodiscard]] std::uint32_t dword(std::uint32_t offset) const;
  void set_dword(std::uint32_t offset, std::uint32_t value);

  std::vector<Entry> entries_;
  std::vector<bool> pending_;
  std::uint16_t control_{};
};

}  // namespace vmm
