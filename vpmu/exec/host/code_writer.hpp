#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace vpmu::exec {

/// Writes machine code to a place of a fixed size. A byte that does not fit, or a number that is no byte, is not
/// written and spoils the whole: written() is then empty until clear(), so that no part is ever run. The guest's code
/// decides what is written here.
class CodeWriter {
 public:
  explicit CodeWriter(std::span<std::byte> to) : to_{to} {}

  void byte(std::uint64_t value) {
    constexpr std::uint64_t largest = 0xFF;
    if (size_ == to_.size() || value > largest) return spoil();
    to_[size_++] = static_cast<std::byte>(value);
  }
  void bytes(std::initializer_list<unsigned> list) {
    for (const unsigned b : list) byte(b);
  }
  void copy(std::span<const std::byte> code) {
    for (const std::byte b : code) byte(std::to_integer<unsigned>(b));
  }
  /// The lowest `count` bytes of `value`.
  void append(std::uint64_t value, unsigned count) {
    for (; count > 0; --count, value >>= 8) byte(value & 0xFF);
  }
  /// Changes four bytes that were written before.
  void replace_word32(std::size_t at, std::uint32_t value) {
    if (size_ < sizeof value || at > size_ - sizeof value) return spoil();
    for (std::size_t i = 0; i < sizeof value; ++i, value >>= 8) to_[at + i] = static_cast<std::byte>(value & 0xFF);
  }
  /// For a caller that finds something that it cannot encode.
  void spoil() { whole_ = false; }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool is_whole() const { return whole_; }
  /// What was written; empty unless all of it was.
  [[nodiscard]] std::span<const std::byte> written() const {
    return whole_ ? to_.first(size_) : std::span<const std::byte>{};
  }
  /// Begins anew.
  void clear() {
    size_ = 0;
    whole_ = true;
  }

 private:
  std::span<std::byte> to_;
  std::size_t size_{};
  bool whole_{true};
};

}  // namespace vpmu::exec
