#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace gt {

/// Builds one line in a buffer of its caller; truncates what does not fit. Always NUL-terminated.
class Text {
 public:
  explicit Text(std::span<char> buffer) : buffer_{buffer} { terminate(); }

  Text& operator<<(const char* text) {
    while (*text != '\0') put(*text++);
    return *this;
  }
  Text& operator<<(char c) {
    put(c);
    return *this;
  }
  Text& operator<<(bool value) { return *this << (value ? "true" : "false"); }
  /// Integers are written in hexadecimal with 0x: nearly all of them are registers here.
  Text& operator<<(std::uint64_t value) {
    *this << "0x";
    bool started = false;
    for (int shift = 60; shift >= 0; shift -= 4) {
      const unsigned digit = (value >> shift) & 0xF;
      started = started || digit != 0 || shift == 0;
      if (started) put("0123456789abcdef"[digit]);
    }
    return *this;
  }
  Text& operator<<(std::uint32_t value) { return *this << std::uint64_t{value}; }
  Text& operator<<(std::uint16_t value) { return *this << std::uint64_t{value}; }
  Text& operator<<(std::uint8_t value) { return *this << std::uint64_t{value}; }
  Text& operator<<(int value) { return *this << static_cast<std::uint64_t>(value); }

 private:
  void put(char c) {
    if (size_ + 1 >= buffer_.size()) return;
    buffer_[size_++] = c;
    terminate();
  }
  void terminate() { buffer_[size_] = '\0'; }

  std::span<char> buffer_;
  std::size_t size_{};
};

}  // namespace gt
