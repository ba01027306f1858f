#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace vmm {

/// Reads little-endian fields of an untrusted file: each read is bounds-checked, and needs no alignment.
class ByteView {
 public:
  explicit ByteView(std::span<const std::byte> bytes) : bytes_{bytes} {}

  [[nodiscard]] std::uint64_t size() const { return bytes_.size(); }
  /// The value at `offset`; empty when it does not lie wholly inside.
  template <class T>
  [[nodiscard]] std::optional<T> read(std::uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) {
      return std::nullopt;
    }
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  /// `size` bytes at `offset`; empty when they do not lie wholly inside.
  [[nodiscard]] std::optional<std::span<const std::byte>> slice(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || bytes_.size() - offset < size) {
      return std::nullopt;
    }
    return bytes_.subspan(offset, size);
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace vmm
