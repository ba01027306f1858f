#pragma once
#include <cstdint>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"

namespace vmm::test {

/// Bytes of 64-bit code, which derived classes put together.
class GuestCode {
 public:
  [[nodiscard]] const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 protected:
  static constexpr std::uint8_t rax = 0, rcx = 1, rdx = 2, rbx = 3, rsi = 6, rdi = 7;

  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  void add(const std::vector<std::uint8_t>& bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void add_word(std::uint64_t word, unsigned bytes) {
    for (unsigned n = 0; n < bytes; ++n) bytes_.push_back(static_cast<std::uint8_t>(word >> (8 * n)));
  }
  void move(std::uint8_t reg, std::uint64_t value) {
    add({0x48, static_cast<std::uint8_t>(0xB8 + reg)});
    add_word(value, 8);
  }
  void write_msr(std::uint32_t index, std::uint64_t value) {
    move(rcx, index);
    move(rax, value & 0xFFFF'FFFF);
    move(rdx, value >> 32);
    add(X86("wrmsr"));
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace vmm::test
