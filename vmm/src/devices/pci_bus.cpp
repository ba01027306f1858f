#include "devices/pci_bus.hpp"

#include <algorithm>
#include <cstring>

#include "devices/pci_header.hpp"
#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

// CONFIG_ADDRESS. PCI 3.0 figure 3-2.
using ADDRESS_ENABLE = vpmu::Bits<31>;
using BUS = vpmu::Bits<23, 16>;
using DEVICE = vpmu::Bits<15, 11>;
using FUNCTION = vpmu::Bits<10, 8>;
constexpr std::uint32_t register_bits = 0xFC;
constexpr std::uint32_t address_bits = 0x80FF'FFFC;

/// Intel's 82441FX, the host bridge that virtual PCs commonly have; it has no writable registers here.
class HostBridge final : public PciFunction {
 public:
  std::uint32_t config_read(std::uint8_t offset) override { return header_.read(offset); }
  void config_write(std::uint8_t /*offset*/, std::uint32_t /*value*/, std::uint32_t /*mask*/) override {}

 private:
  PciHeader header_{{.vendor = 0x8086, .device = 0x1237, .class_code = 0x06'00'00, .revision = 2}};
};

}  // namespace

PciBus::PciBus() { add(std::make_unique<HostBridge>()); }

unsigned PciBus::add(std::unique_ptr<PciFunction> function) {
  VMM_ASSERT(functions_.size() < max_devices);
  functions_.push_back(std::move(function));
  return devices() - 1;
}

PciFunction* PciBus::selected(std::uint32_t address) const {
  const auto device = static_cast<std::size_t>(DEVICE::get(address));
  const bool there = ADDRESS_ENABLE::test(address) && BUS::get(address) == 0 && FUNCTION::get(address) == 0;
  return there && device < functions_.size() ? functions_[device].get() : nullptr;
}

void PciBus::port_read(std::uint16_t port, std::span<std::byte> out) {
  const std::uint32_t address = address_.load(std::memory_order_relaxed);
  if (port == address_port) {
    if (out.size() == sizeof address) std::memcpy(out.data(), &address, sizeof address);
    return;
  }
  const unsigned first = port - data_port;
  PciFunction* const function = selected(address);
  if (function == nullptr || first + out.size() > data_ports) return;
  const std::uint32_t value = function->config_read(static_cast<std::uint8_t>(address & register_bits)) >> (first * 8);
  std::memcpy(out.data(), &value, out.size());
}

void PciBus::port_write(std::uint16_t port, std::span<const std::byte> in) {
  std::uint32_t value = 0;
  std::memcpy(&value, in.data(), std::min(in.size(), sizeof value));
  if (port == address_port) {
    if (in.size() == sizeof value) address_.store(value & address_bits, std::memory_order_relaxed);
    return;
  }
  const unsigned first = port - data_port;
  const std::uint32_t address = address_.load(std::memory_order_relaxed);
  PciFunction* const function = selected(address);
  if (function == nullptr || first + in.size() > data_ports) return;
  const auto mask = static_cast<std::uint32_t>(vpmu::low_bits(static_cast<unsigned>(in.size() * 8)));
  function->config_write(static_cast<std::uint8_t>(address & register_bits), value << (first * 8), mask << (first * 8));
}

void PciBus::mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  for (const auto& function : functions_)
    if (function->memory_read(at, out)) return;
}

void PciBus::mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) {
  for (const auto& function : functions_)
    if (function->memory_write(at, in)) return;
}

}  // namespace vmm
