#pragma once
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "memory/physical_memory.hpp"

namespace vmm::test {

/// Guest RAM from physical address 0; everything above is a hole.
class FakeRam final : public PhysicalMemory {
 public:
  explicit FakeRam(std::size_t bytes) : bytes_(bytes) {}

  bool read(vpmu::GuestPhysical at, std::span<std::byte> out) override {
    if (!contains(at, out.size())) return false;
    std::memcpy(out.data(), &bytes_[at.value()], out.size());
    return true;
  }
  bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) override {
    if (!contains(at, in.size())) return false;
    std::memcpy(&bytes_[at.value()], in.data(), in.size());
    return true;
  }
  [[nodiscard]] bool contains(vpmu::GuestPhysical at, std::uint64_t bytes) const override {
    return at.value() < bytes_.size() && bytes <= bytes_.size() - at.value();
  }
  [[nodiscard]] std::byte* host_page(vpmu::GuestPhysical page) override {
    return contains(page, vpmu::page_size) ? &bytes_[page.value()] : nullptr;
  }
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override {
    std::uint64_t word = 0;
    if (!read(at, std::as_writable_bytes(std::span{&word, 1}).first(bytes))) return std::nullopt;
    return word;
  }
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    return read_word(at, bytes) == expected && write(at, std::as_bytes(std::span{&desired, 1}).first(bytes));
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace vmm::test
