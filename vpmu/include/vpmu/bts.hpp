#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vpmu/address.hpp"
#include "vpmu/bits.hpp"

namespace vpmu {

/// A branch trace record: three 64-bit fields in every mode. SDM 3B 17.4.9.1, figure 17-9.
struct BtsRecord {
  static constexpr std::uint64_t size = 24;
  using PREDICTED = Bits<4>;  ///< Of `flags`.

  std::uint64_t from{};
  std::uint64_t to{};
  std::uint64_t flags{};
  /// The record as it lies in memory.
  [[nodiscard]] std::array<std::byte, size> encode() const;
  friend bool operator==(const BtsRecord&, const BtsRecord&) = default;
};

/// The DS buffer management area, BTS half, at IA32_DS_AREA. SDM 3B figure 17-8.
struct BtsArea {
  static constexpr std::uint64_t index_offset = 0x08;
  /// Bytes of the half.
  static constexpr std::uint64_t bytes = 0x20;

  GuestLinear base;
  GuestLinear index;
  GuestLinear absolute_maximum;
  GuestLinear interrupt_threshold;

  /// Decodes the bytes read at IA32_DS_AREA.
  static BtsArea decode(std::span<const std::byte, bytes> in);
  /// Whether a record may be written at `at` (rules F1, F7, F8).
  [[nodiscard]] bool has_room(GuestLinear at) const;
};

}  // namespace vpmu
