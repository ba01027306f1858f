#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>

#include "exec/platform.hpp"

namespace vpmu::exec::test {

/// Memory of this process below 4 GiB that stands at the same address in the guest, which runs without paging.
class FlatRam final : public Ram {
 public:
  explicit FlatRam(std::size_t bytes, int protection = PROT_READ | PROT_WRITE) : bytes_{bytes} {
    void* const at = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error{"no memory below 2 GiB"};
    base_ = static_cast<std::byte*>(at);
  }
  ~FlatRam() override { ::munmap(base_, bytes_); }
  FlatRam(const FlatRam&) = delete;
  FlatRam& operator=(const FlatRam&) = delete;

  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(base_); }
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, bytes_}; }

  std::byte* page(GuestPhysical at) override {
    const std::uint64_t offset = at.value() - address();
    return offset < bytes_ ? base_ + offset : nullptr;
  }
  void will_write(GuestPhysical) override { ++writes; }
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned size) override {
    ++words_read;
    std::uint64_t word{};
    const std::uint64_t offset = at.value() - address();
    if (offset + size > bytes_) return std::nullopt;
    std::memcpy(&word, base_ + offset, size);
    return word;
  }
  bool exchange_word(GuestPhysical at, unsigned size, std::uint64_t expected, std::uint64_t desired) override {
    if (read_word(at, size) != expected) return false;
    std::memcpy(base_ + (at.value() - address()), &desired, size);
    return true;
  }

  unsigned writes{};
  unsigned words_read{};  ///< Of page tables.

 private:
  std::byte* base_{};
  std::size_t bytes_;
};

}  // namespace vpmu::exec::test
