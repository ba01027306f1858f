#pragma once
#include "memory/guest_memory.hpp"
#include "memory/physical_memory.hpp"

namespace vmm {

/// Adapts GuestMemory for LinearMemory and the page walk. Holds no state; safe on any thread.
class RamAccess final : public PhysicalMemory {
 public:
  /// `memory` must outlive this object.
  explicit RamAccess(const GuestMemory& memory) : memory_{memory} {}

  bool read(vpmu::GuestPhysical at, std::span<std::byte> out) override;
  bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) override;
  [[nodiscard]] bool contains(vpmu::GuestPhysical at, std::uint64_t bytes) const override;
  [[nodiscard]] std::byte* host_page(vpmu::GuestPhysical page) override;
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;

 private:
  const GuestMemory& memory_;
};

}  // namespace vmm
