#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "devices/mmio.hpp"
#include "devices/port_bus.hpp"

namespace vmm {

/// One function of the PCI bus. Called on vCPUs' threads, several at a time: a function guards its own state.
class PciFunction {
 public:
  virtual ~PciFunction() = default;
  /// The dword at `offset`, a multiple of four.
  [[nodiscard]] virtual std::uint32_t config_read(std::uint8_t offset) = 0;
  /// Writes the bytes under `mask`.
  virtual void config_write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask) = 0;
  /// Accesses of 1 to 8 bytes to memory that its BARs decode. False if the BARs do not decode `at`.
  virtual bool memory_read(vpmu::GuestPhysical /*at*/, std::span<std::byte> /*out*/) { return false; }
  virtual bool memory_write(vpmu::GuestPhysical /*at*/, std::span<const std::byte> /*in*/) { return false; }
};

/// PCI bus 0 with a host bridge, reached through ports CF8H and CFCH (PCI Local Bus Specification 3.0, 3.2.2.3.2). Each
/// device has one function. Device 0 is the bridge itself.
class PciBus final : public PortDevice, public MmioDevices {
 public:
  static constexpr std::uint16_t address_port = 0xCF8, data_port = 0xCFC;
  static constexpr std::uint16_t address_ports = 1, data_ports = 4;
  static constexpr unsigned max_devices = 32;

  PciBus();
  /// Adds a device. Before the vCPUs run.
  /// @return its number; the bus has room for 31 besides the bridge.
  unsigned add(std::unique_ptr<PciFunction> function);
  [[nodiscard]] unsigned devices() const { return static_cast<unsigned>(functions_.size()); }

  void port_read(std::uint16_t port, std::span<std::byte> out) override;
  void port_write(std::uint16_t port, std::span<const std::byte> in) override;
  [[nodiscard]] std::vector<PortRange> ports() const override {
    return {{.first = address_port, .count = address_ports}, {.first = data_port, .count = data_ports}};
  }
  void mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) override;
  void mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) override;
  void save(ByteWriter& out) override { out.put(address_.load()); }
  void restore(ByteReader& in) override { address_ = in.get<std::uint32_t>(); }

 private:
  [[nodiscard]] PciFunction* selected(std::uint32_t address) const;

  std::atomic<std::uint32_t> address_{};
  std::vector<std::unique_ptr<PciFunction>> functions_;
};

}  // namespace vmm
