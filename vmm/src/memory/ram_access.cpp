#include "memory/ram_access.hpp"

#include <atomic>

namespace vmm {

bool RamAccess::read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  const bool is_ram = memory_.read(at, out);
  // The guest may change the bytes at any time: this keeps the compiler from reading them a second time.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return is_ram;
}

bool RamAccess::write(vpmu::GuestPhysical at, std::span<const std::byte> in) { return memory_.write(at, in); }

bool RamAccess::contains(vpmu::GuestPhysical at, std::uint64_t bytes) const {
  return memory_.bytes_at(at, bytes).size() == bytes;
}

std::byte* RamAccess::host_page(vpmu::GuestPhysical page) { return memory_.bytes_at(page, vpmu::page_size).data(); }

std::optional<std::uint64_t> RamAccess::read_word(vpmu::GuestPhysical at, unsigned bytes) {
  if (bytes == sizeof(std::uint32_t)) return memory_.load<std::uint32_t>(at);
  if (bytes == sizeof(std::uint64_t)) return memory_.load<std::uint64_t>(at);
  return std::nullopt;
}

bool RamAccess::exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  if (bytes == sizeof(std::uint32_t)) {
    return memory_.exchange(at, static_cast<std::uint32_t>(expected), static_cast<std::uint32_t>(desired));
  }
  return bytes == sizeof(std::uint64_t) && memory_.exchange(at, expected, desired);
}

}  // namespace vmm
