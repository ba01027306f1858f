#pragma once
#include <cstdint>
#include <mutex>

#include "devices/port_bus.hpp"
#include "snapshot/byte_stream.hpp"

namespace vmm {

/// QEMU's firmware configuration by I/O ports (docs/specs/fw_cfg), as far as test kernels use it: a selector of 16 bits
/// at 510H, and the selected item's bytes one by one at 511H. Items: the signature, the size of RAM and the number of
/// processors. Other items are empty; reads beyond an item's end return 0.
class FirmwareConfig final : public PortDevice {
 public:
  static constexpr std::uint16_t selector_port = 0x510, data_port = 0x511;

  FirmwareConfig(std::uint64_t memory_bytes, unsigned cpus) : memory_bytes_{memory_bytes}, cpus_{cpus} {}
  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;

  [[nodiscard]] std::vector<PortRange> ports() const override { return {{.first = selector_port, .count = 2}}; }
  void save(ByteWriter& out) override;
  void restore(ByteReader& in) override;

 private:
  [[nodiscard]] std::uint64_t item() const;

  std::uint64_t memory_bytes_;
  unsigned cpus_;
  mutable std::mutex mutex_;
  std::uint16_t selected_{};  ///< Under mutex_, like passed_.
  std::uint16_t passed_{};    ///< Bytes that have been read of it; no more than an item has.
};

}  // namespace vmm
