#pragma once
#include <cstdint>

#include "vpmu/address.hpp"
#include "vpmu/trace.hpp"

namespace vpmu {

/// The width that IA32_DS_AREA is checked with: 57-bit addresses are not shown to the guest.
inline constexpr unsigned ds_linear_width = 48;

/// Whether all bytes have a canonical address. For other addresses hardware raises no #PF, so the environment is not
/// even asked (rule F8).
inline bool addressable(GuestLinear at, std::uint64_t size) {
  const GuestLinear last = at + (size - 1);
  return at <= last && is_canonical(at.value(), ds_linear_width) && is_canonical(last.value(), ds_linear_width);
}

/// Whether a record of `size` bytes at `index` lies in its buffer (rules F1, F6, F7, F8).
inline bool fits(GuestLinear base, GuestLinear index, GuestLinear absolute_maximum, std::uint64_t size) {
  const std::uint64_t end = index.value() + size;
  return base <= index && end > index.value() && end <= absolute_maximum.value();
}

/// Why a record did not fit.
inline DropReason no_room_reason(GuestLinear base, GuestLinear index, GuestLinear absolute_maximum,
                                 std::uint64_t size) {
  const bool sane = base <= index && index <= absolute_maximum;
  return sane && addressable(index, size) ? DropReason::buffer_full : DropReason::bad_bounds;
}

}  // namespace vpmu
