#pragma once
#include <cstdint>

#include "vpmu/strong.hpp"

namespace vpmu {

/// A linear address of the guest: the output of segmentation and the input of paging. SDM 3A 3.1.
struct GuestLinear : Strong<GuestLinear, std::uint64_t> {
  using Strong::Strong;
};

/// A physical address of the guest. SDM 3A 3.3.1.
struct GuestPhysical : Strong<GuestPhysical, std::uint64_t> {
  using Strong::Strong;
};

/// The address `bytes` above; wraps at 2^64.
[[nodiscard]] constexpr GuestLinear operator+(GuestLinear a, std::uint64_t bytes) {
  return GuestLinear{a.value() + bytes};
}
/// The address `bytes` above; wraps at 2^64.
[[nodiscard]] constexpr GuestPhysical operator+(GuestPhysical a, std::uint64_t bytes) {
  return GuestPhysical{a.value() + bytes};
}

/// Bytes of the smallest page.
inline constexpr std::uint64_t page_size = 4096;

/// The address of the 4 KiB page that holds `a`.
[[nodiscard]] constexpr GuestLinear page_of(GuestLinear a) { return GuestLinear{a.value() & ~(page_size - 1)}; }
/// The address of the 4 KiB page that holds `a`.
[[nodiscard]] constexpr GuestPhysical page_of(GuestPhysical a) { return GuestPhysical{a.value() & ~(page_size - 1)}; }

/// The offset of `a` in its 4 KiB page, in bytes.
[[nodiscard]] constexpr std::uint64_t page_offset(GuestLinear a) { return a.value() & (page_size - 1); }

/// Whether bits 63:width-1 of `a` are all equal. `width` is 48 (4-level paging) or 57 (5-level). SDM 1 3.3.7.1.
[[nodiscard]] constexpr bool is_canonical(std::uint64_t a, unsigned width) {
  const auto top = static_cast<std::int64_t>(a) >> (width - 1);
  return top == 0 || top == -1;
}

}  // namespace vpmu
