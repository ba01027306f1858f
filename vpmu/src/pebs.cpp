#include "vpmu/pebs.hpp"

#include <bit>
#include <cstring>

#include "ds_access.hpp"
#include "vpmu/address.hpp"

namespace vpmu {

static_assert(std::endian::native == std::endian::little, "records are copied as they lie in memory");

std::size_t encode(PebsFormat format, const PebsRecord& record, std::span<std::byte> out) {
  const std::size_t size = record_size(format);
  std::memcpy(out.data(), record.value.data(), size);
  return size;
}

std::optional<PebsRecord> decode(PebsFormat format, std::span<const std::byte> in) {
  const std::size_t size = record_size(format);
  if (in.size() < size) return std::nullopt;
  PebsRecord record;
  std::memcpy(record.value.data(), in.data(), size);
  return record;
}

DsArea DsArea::decode(std::span<const std::byte, pebs_bytes> in) {
  std::array<std::uint64_t, pebs_bytes / 8> word{};
  std::memcpy(word.data(), in.data(), in.size());
  DsArea area{.base = GuestLinear{word[0]},
              .index = GuestLinear{word[1]},
              .absolute_maximum = GuestLinear{word[2]},
              .interrupt_threshold = GuestLinear{word[3]}};
  for (unsigned i = 0; i < reset_count; ++i) area.counter_reset[i] = word[4 + i];
  return area;
}

bool DsArea::has_room(std::uint64_t size) const { return fits(base, index, absolute_maximum, size); }

}  // namespace vpmu
