#include "sources/unhalted_clocks.hpp"

#include <algorithm>
#include <numeric>

namespace vmm {
namespace {

/// Far above any processor's. It keeps products of the fractions below within 64 bits.
constexpr std::uint64_t highest_khz = 1'000'000'000;

__extension__ using wide = unsigned __int128;

}  // namespace

void UnhaltedClocks::set_rate(std::uint64_t tsc_khz) {
  const std::uint64_t before = denominator_;
  tsc_khz_ = tsc_khz;
  numerator_ = denominator_ = 1;
  if (tsc_khz != 0 && bus_.khz != 0) {
    const std::uint64_t cycles = std::min(tsc_khz, highest_khz) * bus_.of;
    const std::uint64_t common = std::gcd(std::uint64_t{bus_.khz}, cycles);
    numerator_ = bus_.khz / common;
    denominator_ = cycles / common;
  }
  part_ = static_cast<std::uint64_t>(wide{part_} * denominator_ / before);
}

Ticks UnhaltedClocks::pass(std::uint64_t cycles) {
  const std::uint64_t rest = part_ + cycles % denominator_ * numerator_;
  part_ = rest % denominator_;
  return {.cycles = cycles,
          .ref = cycles,
          .bus = cycles / denominator_ * numerator_ + rest / denominator_,
          .alone = alone_};
}

std::uint64_t UnhaltedClocks::cycles_before_bus(std::uint64_t ticks) const {
  const wide cycles = (wide{ticks} * denominator_ - part_ - 1) / numerator_;
  return static_cast<std::uint64_t>(std::min<wide>(cycles, ~std::uint64_t{0}));
}

bool UnhaltedClocks::restore(const Image& image) {
  set_rate(image.tsc_khz);
  if (image.part >= denominator_) return false;
  part_ = image.part;
  return true;
}

}  // namespace vmm
