#include "devices/msix_table.hpp"

#include <algorithm>
#include <cstring>

#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t entry_bytes = 16;
using MSIX_ENABLE = vpmu::Bits<15>;
using FUNCTION_MASK = vpmu::Bits<14>;

}  // namespace

MsixTable::MsixTable(unsigned vectors) : entries_(vectors), pending_(vectors) {
  VMM_ASSERT(vectors >= 1 && vectors <= max_vectors);
}

std::uint32_t MsixTable::dword(std::uint32_t offset) const {
  if (offset >= pending_offset) {
    std::uint32_t bits = 0;
    const std::uint32_t first = (offset - pending_offset) * 8;
    for (std::uint32_t i = 0; i < 32 && first + i < vectors(); ++i)
      if (pending_[first + i]) bits |= 1U << i;
    return bits;
  }
  if (offset / entry_bytes >= vectors()) return 0;
  const Entry& entry = entries_[offset / entry_bytes];
  switch (offset % entry_bytes) {
    case 0: return entry.address_low;
    case 4: return entry.address_high;
    case 8: return entry.data;
    default: return entry.control;
  }
}

void MsixTable::set_dword(std::uint32_t offset, std::uint32_t value) {
  if (offset >= pending_offset || offset / entry_bytes >= vectors()) return;
  Entry& entry = entries_[offset / entry_bytes];
  switch (offset % entry_bytes) {
    case 0: entry.address_low = value & ~3U; return;
    case 4: entry.address_high = value; return;
    case 8: entry.data = value; return;
    default: entry.control = value & masked; return;
  }
}

void MsixTable::read(std::uint32_t offset, std::span<std::byte> out) const {
  std::ranges::fill(out, std::byte{0});
  if (offset % 4 != 0 || out.size() % 4 != 0 || offset + out.size() > bytes) return;
  for (std::uint32_t at = 0; at < out.size(); at += 4) {
    const std::uint32_t value = dword(offset + at);
    std::memcpy(out.data() + at, &value, sizeof value);
  }
}

void MsixTable::write(std::uint32_t offset, std::span<const std::byte> in) {
  if (offset % 4 != 0 || in.size() % 4 != 0 || offset + in.size() > bytes) return;
  for (std::uint32_t at = 0; at < in.size(); at += 4) {
    std::uint32_t value{};
    std::memcpy(&value, in.data() + at, sizeof value);
    set_dword(offset + at, value);
  }
}

void MsixTable::set_control(std::uint16_t control) { control_ = control; }

bool MsixTable::enabled() const { return MSIX_ENABLE::test(control_); }

std::optional<InterruptMessage> MsixTable::message(unsigned vector) const {
  if (vector >= vectors() || !enabled() || FUNCTION_MASK::test(control_)) return std::nullopt;
  const Entry& entry = entries_[vector];
  if ((entry.control & masked) != 0) return std::nullopt;
  return InterruptMessage{.address = entry.address_low | std::uint64_t{entry.address_high} << 32U, .data = entry.data};
}

void MsixTable::set_pending(unsigned vector) {
  if (vector < vectors()) pending_[vector] = true;
}

std::optional<unsigned> MsixTable::take_pending() {
  for (unsigned vector = 0; vector < vectors(); ++vector) {
    if (!pending_[vector] || !message(vector)) continue;
    pending_[vector] = false;
    return vector;
  }
  return std::nullopt;
}

void MsixTable::save(ByteWriter& out) const {
  for (unsigned vector = 0; vector < vectors(); ++vector) {
    out.put(entries_[vector]);
    out.put(static_cast<std::uint8_t>(pending_[vector] ? 1 : 0));
  }
}

void MsixTable::restore(ByteReader& in) {
  for (unsigned vector = 0; vector < vectors(); ++vector) {
    const auto saved = in.get<Entry>();
    const std::uint32_t at = vector * entry_bytes;
    set_dword(at, saved.address_low);
    set_dword(at + 4, saved.address_high);
    set_dword(at + 8, saved.data);
    set_dword(at + 12, saved.control);
    pending_[vector] = in.get<std::uint8_t>() != 0;
  }
}

}  // namespace vmm
