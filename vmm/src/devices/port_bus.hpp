#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvm/exit.hpp"
#include "snapshot/byte_stream.hpp"

namespace vmm {

/// I/O ports from `first` on.
struct PortRange {
  std::uint16_t first{};
  std::uint16_t count{1};
};

/// A device at I/O ports. Called on several vCPU threads at a time: a device guards its own state. Ports, values and
/// order come from a guest, which may be hostile.
class PortDevice {
 public:
  virtual ~PortDevice() = default;
  /// IN of one item of 1, 2 or 4 bytes; `out` arrives as all ones.
  virtual void port_read(std::uint16_t port, std::span<std::byte> out) = 0;
  /// OUT of one item.
  virtual void port_write(std::uint16_t port, std::span<const std::byte> in) = 0;
  /// Where a PC has it; empty: whoever makes it decides.
  [[nodiscard]] virtual std::vector<PortRange> ports() const { return {}; }
  /// Writes the state that its guest can find again; while no vCPU runs.
  virtual void save(ByteWriter& /*out*/) {}
  /// The reverse, before the vCPUs run. What is missing in the bytes, or impossible, shows in ByteReader::done() or is
  /// read as something possible.
  virtual void restore(ByteReader& /*in*/) {}
};

/// Sends port accesses to devices. Accesses to other ports read all ones or write nothing, as on a PC, and are counted.
class PortBus {
 public:
  /// Gives `device` the ports `first` .. `first + count - 1`; it must outlive the bus. Before the vCPUs run. Ports may
  /// not overlap.
  void add(std::uint16_t first, std::uint16_t count, PortDevice& device);
  /// The same for all of PortDevice::ports().
  void add(PortDevice& device) {
    for (const PortRange& range : device.ports()) add(range.first, range.count, device);
  }

  void read(const PortRead& access);
  void write(const PortWrite& access);

  /// Accesses that no device answered.
  [[nodiscard]] std::uint64_t unclaimed() const { return unclaimed_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::uint16_t first;
    std::uint16_t count;
    PortDevice* device;
  };
  [[nodiscard]] PortDevice* find(std::uint16_t port);

  std::vector<Entry> entries_;
  std::atomic<std::uint64_t> unclaimed_{0};
};

}  // namespace vmm
