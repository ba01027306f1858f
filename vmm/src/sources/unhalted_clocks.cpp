#include "sources/unhalted_clocks.hpp"

#include <algorithm>
#include <numeric>

namespace vmm {
namespace {

/// Far above any processor's. It keeps products of the fractions below within 64 bits.
constexpr std::uint64_t highest_khz = 1'000'000'000;

__extension__ using wide = unsigned __int128;

}  // namespace

void UnhaltedClocks::Rate::set(std::uint64_t khz, std::uint64_t core_khz) {
  const std::uint64_t before = denominator, common = std::gcd(khz, core_khz);
  numerator = khz / common;
  denominator = core_khz / common;
  part = static_cast<std::uint64_t>(wide{part} * denominator / before);
}

std::uint64_t UnhaltedClocks::Rate::pass(std::uint64_t cycles) {
  const std::uint64_t rest = part + cycles % denominator * numerator;
  part = rest % denominator;
  return cycles / denominator * numerator + rest / denominator;
}

std::uint64_t UnhaltedClocks::Rate::before(std::uint64_t ticks) const {
  const wide cycles = (wide{ticks} * denominator - part - 1) / numerator;
  return static_cast<std::uint64_t>(std::min<wide>(cycles, ~std::uint64_t{0}));
}

void UnhaltedClocks::set_rate(std::uint64_t tsc_khz) {
  tsc_khz_ = tsc_khz;
  const std::uint64_t tsc = std::min(tsc_khz, highest_khz),
                      core = core_khz_ != 0 && tsc != 0 ? std::min(core_khz_, highest_khz) : tsc;
  const bool has_bus = tsc != 0 && bus_.khz != 0;
  bus_rate_.set(has_bus ? bus_.khz : 1, has_bus ? core * bus_.of : 1);
  ref_.set(tsc != 0 ? tsc : 1, tsc != 0 ? core : 1);
}

Ticks UnhaltedClocks::pass(std::uint64_t cycles) {
  return {.cycles = cycles, .ref = ref_.pass(cycles), .bus = bus_rate_.pass(cycles), .alone = alone_};
}

bool UnhaltedClocks::restore(const Image& image) {
  set_rate(image.tsc_khz);
  if (image.bus_part >= bus_rate_.denominator || image.ref_part >= ref_.denominator) return false;
  bus_rate_.part = image.bus_part;
  ref_.part = image.ref_part;
  return true;
}

}  // namespace vmm
