#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "decode/instruction.hpp"

namespace vmm {

/// decode_instruction() with a cache of its results by bytes, because the same loops are decoded over and over.
class DecodedInstructions {
 public:
  /// `bytes`: up to 15 bytes, which begin with the instruction. Null if they do not.
  /// The result is valid until the next call.
  const Instruction* operator()(std::span<const std::byte> bytes, CodeMode mode) {
    Entry asked{.size = static_cast<std::uint8_t>(std::min(bytes.size(), max_instruction_bytes))};
    std::ranges::copy(bytes.first(asked.size), asked.bytes.begin());
    asked.bytes.back() = static_cast<std::byte>(mode);
    Entry& known = entries_[place_of(asked)];
    if (known.size != asked.size || known.bytes != asked.bytes) {
      known = asked;
      known.instruction = decode_instruction(bytes, mode);
    }
    return known.instruction ? &*known.instruction : nullptr;
  }

 private:
  static constexpr unsigned place_bits = 12;
  struct Entry {
    std::array<std::byte, max_instruction_bytes + 1> bytes{};  ///< Padded with 0; the last is the CodeMode.
    std::uint8_t size{};                                       ///< 0 = no bytes, which decode to no instruction.
    std::optional<Instruction> instruction{};
  };
  static std::size_t place_of(const Entry& entry) {
    constexpr std::uint64_t spread = 0x9E37'79B9'7F4A'7C15;
    std::array<std::uint64_t, 2> words{};
    std::memcpy(words.data(), entry.bytes.data(), sizeof words);
    return (words[0] ^ words[1] * spread) * spread >> (64 - place_bits);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(std::size_t{1} << place_bits);
};

}  // namespace vmm
