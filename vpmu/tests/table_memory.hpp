#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "vpmu/paging.hpp"

namespace vpmu::test {

/// A little RAM from physical address 0 that holds page tables; everything above is a hole. Counts reads, and lets a
/// test play the other CPU: `before_exchange` runs before each exchange.
class TableMemory final : public PhysicalWords {
 public:
  explicit TableMemory(std::size_t bytes) : bytes_(bytes) {}

  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) override {
    ++reads;
    return has(at, bytes) ? std::optional{peek(at.value(), bytes)} : std::nullopt;
  }

  bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    ++exchanges;
    if (before_exchange) before_exchange(at);
    if (is_read_only || !has(at, bytes) || peek(at.value(), bytes) != expected) return false;
    poke(at.value(), desired, bytes);
    return true;
  }

  [[nodiscard]] std::uint64_t peek(std::uint64_t at, unsigned bytes) const {
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes_.at(at), bytes);
    return word;
  }
  void poke(std::uint64_t at, std::uint64_t word, unsigned bytes) { std::memcpy(&bytes_.at(at), &word, bytes); }

  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

  unsigned reads{};
  unsigned exchanges{};
  bool is_read_only{};
  std::function<void(GuestPhysical)> before_exchange;

 private:
  [[nodiscard]] bool has(GuestPhysical at, unsigned bytes) const {
    return at.value() % bytes == 0 && at.value() < bytes_.size() && bytes <= bytes_.size() - at.value();
  }

  std::vector<std::uint8_t> bytes_;
};

}  // namespace vpmu::test
