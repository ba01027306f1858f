#pragma once
#include <cstddef>
#include <span>

#include "vpmu/address.hpp"

namespace vmm {

/// Devices at physical addresses without RAM. Called on several vCPUs' threads at a time; addresses, sizes and values
/// come from a guest, which may be hostile.
class MmioDevices {
 public:
  virtual ~MmioDevices() = default;
  /// A load of 1 to 8 bytes. `out` arrives as all ones and stays so where no device answers.
  virtual void mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) = 0;
  /// A store. It is lost if no device takes it, as on a PC.
  virtual void mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) = 0;
};

}  // namespace vmm
