#pragma once
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "memory/physical_memory.hpp"

namespace vmm::test {

/// Guest RAM in single pages with holes between them. Counts how often each byte is read.
class PatchyMemory final : public PhysicalMemory {
 public:
  using Page = std::array<std::byte, vpmu::page_size>;

  void add_page(std::uint64_t at) { pages_[at]; }

  bool read(vpmu::GuestPhysical at, std::span<std::byte> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::byte* from = find(at.value() + i);
      if (from == nullptr) return false;
      ++reads_of[at.value() + i];
      out[i] = *from;
    }
    return true;
  }
  bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) override {
    if (!contains(at, in.size())) return false;
    for (std::size_t i = 0; i < in.size(); ++i) *find(at.value() + i) = in[i];
    return true;
  }
  [[nodiscard]] bool contains(vpmu::GuestPhysical at, std::uint64_t bytes) const override {
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (!pages_.contains((at.value() + i) & ~(vpmu::page_size - 1))) return false;
    }
    return true;
  }
  [[nodiscard]] std::byte* host_page(vpmu::GuestPhysical page) override { return find(page.value()); }
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override {
    ++words_read;
    if (!contains(at, bytes)) return std::nullopt;
    std::uint64_t word = 0;
    std::memcpy(&word, find(at.value()), bytes);
    return word;
  }
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    if (read_word(at, bytes) != expected) return false;
    std::memcpy(find(at.value()), &desired, bytes);
    return true;
  }

  /// `at` must lie in a page of RAM.
  void poke(std::uint64_t at, std::uint64_t word) { std::memcpy(find(at), &word, sizeof word); }
  [[nodiscard]] std::uint64_t peek(std::uint64_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, find(at), sizeof word);
    return word;
  }

  std::map<std::uint64_t, unsigned> reads_of;
  unsigned words_read{};

 private:
  std::byte* find(std::uint64_t at) {
    const auto page = pages_.find(at & ~(vpmu::page_size - 1));
    return page == pages_.end() ? nullptr : &page->second.at(at % vpmu::page_size);
  }
  std::map<std::uint64_t, Page> pages_;
};

}  // namespace vmm::test
