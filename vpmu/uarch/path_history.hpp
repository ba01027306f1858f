#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "uarch/state.hpp"

namespace vpmu::uarch {

/// The branches that were taken last, as Intel's path history register from Ivy Bridge to Skylake has them: 93, of each
/// 16 bits of the address of its last byte and 6 of its target (jia.je, "Reverse Engineered Conditional Branch
/// Predictors"; H. Yavarzadeh et al., "Half&Half", 2023). There each is shifted by two bits, and they overlap; here the
/// history is a hash of them.
class PathHistory {
 public:
  /// So many of them are hashed together. 93 is all; 29 is what Haswell predicts indirect branches by (P. Kocher et
  /// al., "Spectre Attacks", 2018); 9 is a choice.
  static constexpr std::array<unsigned, 3> lengths{9, 29, 93};
  static constexpr std::size_t for_targets = 1;

  /// The lowest of the 16 bits of a branch's address.
  explicit PathHistory(unsigned from_bit) : from_bit_{from_bit} {}
  void took(std::uint64_t last_byte, std::uint64_t to) {
    const std::uint64_t now = 0x10000 + ((last_byte >> from_bit_ & 0xFFFF) ^ (to & 0x3F) << 10);
    for (std::size_t n = 0; n < lengths.size(); ++n)
      hashes_[n] = hashes_[n] * base + now - ring_[(count_ - lengths[n]) % ring_.size()] * leaves[n];
    ring_[count_++ % ring_.size()] = now;
  }
  /// Of the last lengths[n].
  [[nodiscard]] std::uint64_t of(std::size_t n) const { return hashes_[n]; }
  void visit_state(const StateVisitor& visit) {
    visit(state_bytes(hashes_));
    visit(state_bytes(ring_));
    visit(state_bytes(count_));
  }

 private:
  // A polynomial in `base`, modulo 2^64: what is `length` branches old leaves it with base^length.
  static constexpr std::uint64_t base = 0xD134'2543'DE82'EF95ULL;
  static constexpr std::array<std::uint64_t, lengths.size()> leaves = [] {
    std::array<std::uint64_t, lengths.size()> all{};
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      all[n] = 1;
      for (unsigned power = 0; power < lengths[n]; ++power) all[n] *= base;
    }
    return all;
  }();
  unsigned from_bit_;
  std::array<std::uint64_t, lengths.size()> hashes_{};
  std::array<std::uint64_t, 128> ring_{};
  std::uint64_t count_{};
};

}  // namespace vpmu::uarch
