#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "snapshot/byte_stream.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// The configuration space of a PCI function with a header of type 0: what it reads as, which bits a guest can write,
/// its 32-bit memory BARs and its capabilities. PCI Local Bus Specification 3.0, chapter 6.
class PciHeader {
 public:
  struct Identity {
    std::uint16_t vendor, device;
    std::uint32_t class_code;  ///< Class, subclass and programming interface: 24 bits.
    std::uint8_t revision{};
    std::uint16_t subsystem_vendor{}, subsystem{};
  };
  static constexpr unsigned bars = 6;

  explicit PciHeader(const Identity& identity);

  /// A memory BAR that firmware has put at `address`; `bytes` is a power of two of at least 4 KiB.
  void add_bar(unsigned bar, std::uint32_t bytes, std::uint32_t address);
  /// Appends a capability to the list: its id, and what follows the pointer to the next one.
  /// @return its offset.
  std::uint8_t add_capability(std::uint8_t id, std::span<const std::uint8_t> body);
  /// Lets the guest write bits of the dword at `offset`.
  void make_writable(std::uint8_t offset, std::uint32_t bits);

  /// The dword at a multiple of four below 256.
  [[nodiscard]] std::uint32_t read(std::uint8_t offset) const { return values_[offset / 4U]; }
  /// Writes the bytes under `mask`, of these the bits that can be written.
  void write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask);

  void save(ByteWriter& out) const { out.put(values_); }
  /// Takes over what the guest can have written.
  void restore(ByteReader& in);

  /// The BAR and the offset in it that an address hits while the function decodes memory.
  struct Hit {
    unsigned bar;
    std::uint32_t offset;
  };
  [[nodiscard]] std::optional<Hit> find(vpmu::GuestPhysical at) const;
  /// The BAR's address as the guest has set it; empty while the function decodes no memory.
  [[nodiscard]] std::optional<vpmu::GuestPhysical> bar_address(unsigned bar) const;

 private:
  std::array<std::uint32_t, 64> values_{};
  std::array<std::uint32_t, 64> writable_{};
  std::array<std::uint32_t, bars> bar_bytes_{};
  std::uint8_t last_capability_{};  ///< Offset; 0: none yet.
  std::uint8_t next_free_{0x40};
};

}  // namespace vmm
