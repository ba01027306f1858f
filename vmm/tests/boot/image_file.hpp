#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace vmm::test {

/// The bytes of a file under construction.
class ImageFile {
 public:
  explicit ImageFile(std::size_t bytes) : bytes_(bytes) {}
  template <class T>
  ImageFile& put(std::size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  ImageFile& resize(std::size_t bytes) {
    bytes_.resize(bytes);
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A bzImage of two setup sectors and 4 KiB of code that a loader accepts.
inline ImageFile small_bzimage() {
  constexpr std::size_t code_bytes = 4096;
  ImageFile file{3 * 512 + code_bytes};
  file.put<std::uint8_t>(0x1F1, 2)
      .put<std::uint32_t>(0x1F4, code_bytes / 16)
      .put<std::uint16_t>(0x1FE, 0xAA55)
      .put<std::uint8_t>(0x201, 0x6A)
      .put<std::uint32_t>(0x202, 0x53726448)
      .put<std::uint16_t>(0x206, 0x20F)
      .put<std::uint8_t>(0x211, 1)
      .put<std::uint32_t>(0x22C, 0x7FFFFFFF)
      .put<std::uint32_t>(0x230, 0x200000)
      .put<std::uint8_t>(0x234, 1)
      .put<std::uint16_t>(0x236, 3)
      .put<std::uint32_t>(0x238, 2047)
      .put<std::uint64_t>(0x258, 0x1000000)
      .put<std::uint32_t>(0x260, 0x100000)
      .put<std::uint32_t>(3 * 512, 0xC0DEC0DE);
  return file;
}

}  // namespace vmm::test
