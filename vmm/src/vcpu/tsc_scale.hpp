#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace vmm {

/// One sample of a guest's TSC: its value without its offset, and the host's TSC before and after the read.
struct TscLook {
  std::uint64_t before, guest, after;
};

/// How KVM derives a guest's TSC from the host's: (TSC x multiplier >> fraction bits) + offset. Fraction bits: 48 on
/// Intel (SDM 3C 24.6.5), 32 on AMD.
class TscScale {
 public:
  /// The identity: no scaling.
  constexpr TscScale() = default;
  constexpr TscScale(std::uint64_t multiplier, unsigned fraction_bits)
      : multiplier_{multiplier}, fraction_bits_{fraction_bits} {}

  [[nodiscard]] std::uint64_t of(std::uint64_t host_ticks) const {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(wide{host_ticks} * multiplier_ >> fraction_bits_);
  }
  friend constexpr bool operator==(const TscScale&, const TscScale&) = default;

  /// The scale according to the rates alone. Good for durations, not for points in time.
  static TscScale by_rates(std::uint32_t host_khz, std::uint32_t guest_khz);
  /// The scale of a guest whose TSC runs at `guest_khz` on a host of `host_khz`, found from `looks`. Empty if none of
  /// KVM's scales explains them: a TSC that KVM keeps up by jumps has no scale.
  static std::optional<TscScale> find(std::uint32_t host_khz, std::uint32_t guest_khz, std::span<const TscLook> looks);

 private:
  std::uint64_t multiplier_{1};
  unsigned fraction_bits_{};
};

}  // namespace vmm
