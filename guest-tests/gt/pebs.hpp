#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "vpmu/pebs.hpp"

/// The DS area and the PEBS buffer of the test kernel, and the records in them.
namespace gt::pebs {

using vpmu::PebsRecord;
using vpmu::Slot;

/// DS buffer management area, 64-bit. SDM 3B figure 18-22. The PMU changes it while the program runs, hence
/// volatile.
struct ManagementArea {
  std::uint64_t bts_base, bts_index, bts_maximum, bts_threshold;
  std::uint64_t base, index, maximum, threshold;
  std::array<std::uint64_t, 8> reset;
};

/// Bytes of the record buffer; whole pages.
inline constexpr std::size_t buffer_bytes = 16 * 4096;
/// Fills the buffer where no record has been written.
inline constexpr std::byte poison{0xA5};
inline constexpr std::uint64_t poison_word = 0xA5A5'A5A5'A5A5'A5A5;
/// A threshold, in records, that is never reached.
inline constexpr unsigned no_threshold = 1U << 20;

std::uint64_t record_bytes();

/// The area in static memory, linear = physical, and the buffer's first byte.
volatile ManagementArea& area();
std::byte* buffer();

/// Poisons the buffer, sets base = index, room for `records`, threshold after `threshold_records`; loads IA32_DS_AREA.
void set_up(unsigned records, unsigned threshold_records);
/// Sets the reload value of PMCi: `period` events before overflow.
void set_reset(unsigned counter, std::uint64_t period);

/// Whole records between base and index.
std::uint64_t records_written();
/// Record `i` of the buffer, written or not.
PebsRecord record(std::uint64_t i);
/// The instruction that a record of one of the streams is for: EVENTING_IP, or the one before its RIP (rule P3), see
/// instruction_before().
std::uint64_t eventing_ip(const PebsRecord& record);
/// Whether the buffer is untouched from byte `offset` on.
bool poisoned_from(std::uint64_t offset);

}  // namespace gt::pebs
