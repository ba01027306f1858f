#pragma once
#include <optional>
#include <span>
#include <vector>

#include "devices/mmio.hpp"
#include "processor/debug_registers.hpp"
#include "soft/soft_core.hpp"
#include "vpmu/paging.hpp"

namespace vmm {

/// What a vCPU without KVM reaches where there is no RAM: devices, the APICs, or nothing.
class DeviceMemory {
 public:
  /// `core` must outlive it, and so must `devices`, which may be null.
  DeviceMemory(SoftCore& core, MmioDevices* devices) : core_{&core}, devices_{devices} {}

  /// Where the vCPU reaches no RAM at a linear address. Empty if there is RAM, or it may not go there.
  [[nodiscard]] std::optional<vpmu::GuestPhysical> beyond_ram(std::uint64_t at, bool write) const;
  /// An access from there on, of any size.
  void read(vpmu::GuestPhysical at, std::span<std::byte> out);
  void write(vpmu::GuestPhysical at, std::span<const std::byte> in);

  enum class Device : std::uint8_t { others, local_apic, io_apic };
  /// What of an access is a device's.
  struct Part {
    Device device{};
    vpmu::GuestPhysical physical;
    std::uint64_t at{};  ///< The linear address.
    std::size_t bytes{};
    bool write{};
  };
  /// The parts of accesses that are not RAM's: by pages, and by what a device is asked for at a time. Of the APICs,
  /// whose registers have four bytes, only the first.
  [[nodiscard]] std::vector<Part> parts_of(std::span<const Access> accesses) const;
  /// Fills a page, for all addresses, with what the instruction with these accesses loads; and what stores merge into.
  void load(std::span<const Part> parts, std::span<std::byte, vpmu::page_size> page);
  /// Passes on what it has stored there.
  void store(std::span<const Part> parts, std::span<const std::byte, vpmu::page_size> page);

 private:
  void add_parts(const Access& access, std::vector<Part>& parts) const;
  [[nodiscard]] Device device_at(vpmu::GuestPhysical page) const;
  void read_device(Device device, vpmu::GuestPhysical at, std::span<std::byte> out);
  void write_device(Device device, vpmu::GuestPhysical at, std::span<const std::byte> in);

  SoftCore* core_;
  MmioDevices* devices_;
};

}  // namespace vmm
