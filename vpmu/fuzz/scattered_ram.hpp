#pragma once
#include <sys/mman.h>

#include <cstring>
#include <span>

#include "exec/state/platform.hpp"
#include "fuzz_input.hpp"

namespace vpmu::fuzz {

/// Guest RAM from physical address 0, each page in a place of its own with nothing around it: an access that leaves its
/// page dies. Page tables stand elsewhere, where no translation of ours leads.
class ScatteredRam final : public exec::Ram {
 public:
  static constexpr unsigned pages = 16;
  static constexpr unsigned table_words = 4 * 512;
  static constexpr std::uint64_t tables = 1ULL << 32;

  ScatteredRam() {
    // Page k at (2k + 1) pages of a mapping that is otherwise closed.
    const std::size_t bytes = (2 * pages + 1) * page_size;
    void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(at != MAP_FAILED, "memory for the guest");
    base_ = static_cast<std::byte*>(at);
    for (unsigned n = 0; n < pages; ++n)
      require(::mprotect(at_page(n), page_size, PROT_READ | PROT_WRITE) == 0, "memory for the guest");
  }
  ScatteredRam(const ScatteredRam&) = delete;
  ScatteredRam& operator=(const ScatteredRam&) = delete;
  ~ScatteredRam() override { ::munmap(base_, (2 * pages + 1) * page_size); }

  [[nodiscard]] std::byte* at_page(unsigned n) const { return base_ + (2 * n + 1) * page_size; }
  std::uint64_t& table_word(unsigned n) { return table_[n]; }
  void copy_from(const ScatteredRam& other) {
    for (unsigned n = 0; n < pages; ++n) std::memcpy(at_page(n), other.at_page(n), page_size);
    std::memcpy(table_, other.table_, sizeof table_);
  }
  /// Accessed bits are not compared: a processor may look ahead.
  [[nodiscard]] bool same_as(const ScatteredRam& other) const {
    for (unsigned n = 0; n < pages; ++n)
      if (std::memcmp(at_page(n), other.at_page(n), page_size) != 0) return false;
    constexpr std::uint64_t accessed = 1U << 5;
    for (unsigned n = 0; n < table_words; ++n)
      if (((table_[n] ^ other.table_[n]) & ~accessed) != 0) return false;
    return true;
  }

  std::byte* page(GuestPhysical at) override {
    require(at.value() % page_size == 0, "pages begin at page boundaries");
    return at.value() / page_size < pages ? at_page(static_cast<unsigned>(at.value() / page_size)) : nullptr;
  }
  void will_write(GuestPhysical at) override { require(at.value() / page_size < pages, "only RAM is written"); }
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) override {
    if (at.value() >= tables && at.value() - tables < sizeof table_ && bytes == 8)
      return table_[(at.value() - tables) / 8];
    return std::nullopt;
  }
  bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    if (read_word(at, bytes) != expected) return false;
    table_[(at.value() - tables) / 8] = desired;
    return true;
  }

 private:
  std::byte* base_{};
  std::uint64_t table_[table_words]{};
};

}  // namespace vpmu::fuzz
