#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "vpmu/address.hpp"
#include "vpmu/paging.hpp"

namespace vmm {

/// Guest RAM as the layers above see it: by guest-physical address, and by pointer only for the instruction engine. The
/// interface between GuestMemory and linear access; tests implement a fake. Every address may come from the guest. Safe
/// to call from any thread; the guest and devices may change the bytes at any time.
class PhysicalMemory : public vpmu::PhysicalWords {
 public:
  virtual ~PhysicalMemory() = default;

  /// Copies RAM to `out`, reading each byte once. False, and `out` unspecified, when a byte is not RAM.
  virtual bool read(vpmu::GuestPhysical at, std::span<std::byte> out) = 0;
  /// Copies `in` to RAM. False, and nothing written, when a byte is not writable RAM.
  virtual bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) = 0;
  /// Whether all `bytes` from `at` are RAM.
  [[nodiscard]] virtual bool contains(vpmu::GuestPhysical at, std::uint64_t bytes) const = 0;
  /// The 4 KiB page that starts at `page` in this process, for as long as this object lives; null when it is not RAM.
  [[nodiscard]] virtual std::byte* host_page(vpmu::GuestPhysical page) = 0;
};

}  // namespace vmm
