#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "vpmu/address.hpp"

namespace vpmu {

/// The 64-bit fields of a PEBS record, by position. Formats 0 to 3 are prefixes of one another. SDM 3B tables 18-23,
/// 18-44, 18-55.
enum class Slot : std::uint8_t {
  rflags,
  rip,
  rax,
  rbx,
  rcx,
  rdx,
  rsi,
  rdi,
  rbp,
  rsp,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15,
  status,         ///< 90H: GLOBAL_STATUS (formats 1, 2) or APPLICABLE_COUNTERS (format 3).
  data_address,   ///< 98H.
  data_source,    ///< A0H.
  latency,        ///< A8H, core cycles.
  eventing_ip,    ///< B0H, formats 2 and 3.
  tx_abort_info,  ///< B8H, formats 2 and 3.
  tsc,            ///< C0H, format 3.
};
/// Number of slots.
inline constexpr unsigned slot_count = 25;
/// Number of those that hold registers: the first ones.
inline constexpr unsigned register_slot_count = 18;

/// PEBS record format: IA32_PERF_CAPABILITIES[11:8]. SDM 3B 18.18.
enum class PebsFormat : std::uint8_t { format0 = 0, format1 = 1, format2 = 2, format3 = 3 };

/// Bytes of the longest record.
inline constexpr unsigned max_record_size = slot_count * 8;

/// Number of 64-bit fields of a record.
[[nodiscard]] constexpr unsigned slots_of(PebsFormat f) {
  constexpr std::array<std::uint8_t, 4> slots{18, 22, 24, 25};
  return slots[static_cast<unsigned>(f)];
}
/// Bytes of a record: 90H, B0H, C0H, C8H.
[[nodiscard]] constexpr unsigned record_size(PebsFormat f) { return slots_of(f) * 8; }

/// A record as fields, before it has a format. Fields that a format lacks are left out by encode().
struct PebsRecord {
  std::array<std::uint64_t, slot_count> value{};
  /// The field of a slot.
  [[nodiscard]] constexpr std::uint64_t& operator[](Slot s) { return value[static_cast<unsigned>(s)]; }
  /// Its value.
  [[nodiscard]] constexpr std::uint64_t operator[](Slot s) const { return value[static_cast<unsigned>(s)]; }
  friend bool operator==(const PebsRecord&, const PebsRecord&) = default;
};

/// Writes the record little endian; returns the bytes written, record_size(format). `out` must be at least that long.
std::size_t encode(PebsFormat format, const PebsRecord& record, std::span<std::byte> out);

/// Reads a record; empty when `in` is shorter than record_size(format). Fields that the format lacks are 0.
std::optional<PebsRecord> decode(PebsFormat format, std::span<const std::byte> in);

/// The DS buffer management area, PEBS half, at IA32_DS_AREA + 20H. SDM 3B figure 18-22.
struct DsArea {
  static constexpr std::uint64_t pebs_offset = 0x20;  ///< Of `base`.
  static constexpr std::uint64_t index_offset = 0x28;
  static constexpr std::uint64_t threshold_offset = 0x38;
  static constexpr unsigned reset_count = 4;
  /// Bytes of the half, from pebs_offset on.
  static constexpr std::uint64_t pebs_bytes = (4 + reset_count) * 8;

  GuestLinear base;
  GuestLinear index;
  GuestLinear absolute_maximum;
  GuestLinear interrupt_threshold;
  std::array<std::uint64_t, reset_count> counter_reset{};

  /// Decodes pebs_bytes bytes read at pebs_offset.
  static DsArea decode(std::span<const std::byte, pebs_bytes> in);

  /// Whether a record of `size` bytes may be written at the index (rules F1, F6, F7, F8).
  [[nodiscard]] bool has_room(std::uint64_t size) const;
};

}  // namespace vpmu
