#include "model/clocks.hpp"

#include <algorithm>
#include <utility>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t highest_ratio = 0xFF;

std::uint64_t rounded(std::uint64_t of, std::uint64_t by) { return (of + by / 2) / by; }

}  // namespace

std::uint64_t platform_info(const MachineModel& model, std::uint64_t tsc_khz) {
  using NominalRatio = vpmu::Bits<15, 8>;
  using LowestRatio = vpmu::Bits<47, 40>;
  constexpr std::uint64_t lowest_khz = 800'000;
  const vpmu::Frequency base = vpmu::describe(model.generation).base_clock;
  const std::uint64_t nominal = std::min(rounded(tsc_khz * base.of, base.khz), highest_ratio);
  const std::uint64_t lowest = std::min(rounded(lowest_khz * base.of, base.khz), nominal);
  return NominalRatio::make(nominal) | LowestRatio::make(lowest);
}

// Three times the ratio's step of 133.33 MHz are whole MHz.
std::uint64_t nominal_tsc_khz(const MachineModel& model) {
  constexpr std::uint64_t about_khz = 2'500'000;
  const vpmu::Frequency base = vpmu::describe(model.generation).base_clock;
  return about_khz / base.khz * base.khz;
}

// The last continued fraction whose numerator is small enough.
std::optional<CrystalRatio> crystal_ratio(const MachineModel& model, std::uint64_t tsc_hz) {
  if (model.last_leaf < 0x15) return std::nullopt;
  const std::uint32_t crystal_khz = vpmu::describe(model.generation).bus_clock.khz;
  const std::uint64_t max = 0xFFFF'FFFF / crystal_khz;
  std::uint64_t rest = tsc_hz, by = std::uint64_t{crystal_khz} * 1000;
  std::uint64_t numerator = 1, denominator = 0, numerator_before = 0, denominator_before = 1;
  while (by != 0) {
    const std::uint64_t term = rest / by;
    if (term > max || term * numerator + numerator_before > max) break;
    numerator_before = std::exchange(numerator, term * numerator + numerator_before);
    denominator_before = std::exchange(denominator, term * denominator + denominator_before);
    rest = std::exchange(by, rest % by);
  }
  return CrystalRatio{.denominator = static_cast<std::uint32_t>(denominator),
                      .numerator = static_cast<std::uint32_t>(numerator),
                      .crystal_hz = crystal_khz * 1000};
}

CrystalRatio tsc_as_crystal(std::uint64_t tsc_hz) {
  const std::uint32_t ratio = tsc_hz > 0xFFFF'FFFF ? 2 : 1;
  return {.denominator = 1, .numerator = ratio, .crystal_hz = static_cast<std::uint32_t>(tsc_hz / ratio)};
}

}  // namespace vmm
