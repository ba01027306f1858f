#pragma once
#include <cstddef>
#include <span>

#include "vpmu/address.hpp"

namespace vmm {

/// Devices behind physical addresses where there is no RAM. Called on vCPUs' threads, several at a time; addresses,
/// sizes and values come from a guest that may mean harm.
class MmioDevices {
 public:
  virtual ~MmioDevices() = default;
  /// A load of 1 to 8 bytes. `out` arrives as all ones and stays so where no device answers.
  virtual void mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) = 0;
  /// A store. What no device takes is lost, as on a PC.
  virtual void mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) = 0;
};

}  // namespace vmm
