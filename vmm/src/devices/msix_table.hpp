#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "devices/device_wires.hpp"

namespace vmm {

/// A function's MSI-X table and its pending bits, which fill one page of a BAR. PCI Local Bus Specification 3.0, 6.8.2.
/// Not thread-safe.
class MsixTable {
 public:
  static constexpr std::uint32_t bytes = 4096;
  static constexpr std::uint32_t pending_offset = 0x800;
  static constexpr unsigned most_vectors = 128;  ///< What fits below the pending bits.

  explicit MsixTable(unsigned vectors);

  [[nodiscard]] unsigned vectors() const { return static_cast<unsigned>(entries_.size()); }
  /// Aligned accesses of four or eight bytes; others read as zeros and write nothing.
  void read(std::uint32_t offset, std::span<std::byte> out) const;
  void write(std::uint32_t offset, std::span<const std::byte> in);

  /// The capability's message control: bits 15 and 14.
  void set_control(std::uint16_t control);
  [[nodiscard]] bool enabled() const;

  /// What the vector's interrupt is; empty while it is masked, MSI-X is off, or there is no such vector.
  [[nodiscard]] std::optional<InterruptMessage> message(unsigned vector) const;
  /// An interrupt that found its vector masked waits.
  void set_pending(unsigned vector);
  /// A vector with an interrupt that waited, and now need not: it waits no longer.
  [[nodiscard]] std::optional<unsigned> take_pending();
  /// As after a reset of the function.
  void reset();

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
