#pragma once
#include <cstdint>
#include <optional>

#include "model/model.hpp"

namespace vmm {

/// MSR_PLATFORM_INFO. SDM 3C table 35-13.
/// Its ratios for a model whose TSC has that rate: the nominal one in bits 15:8, and the lowest one in 47:40.
std::uint64_t platform_info(const MachineModel& model, std::uint64_t tsc_khz);

/// The TSC's rate of a machine that may choose it: a multiple of the model's base clock, as on hardware.
std::uint64_t nominal_tsc_khz(const MachineModel& model);

/// CPUID.15H: the TSC's rate is `crystal_hz` * `numerator` / `denominator`.
struct CrystalRatio {
  std::uint32_t denominator{}, numerator{}, crystal_hz{};
};
/// Of a model that has the leaf. The numerator times the crystal's kHz fits in 32 bits, in which guests multiply them;
/// so the ratio is the nearest such, less than 100 Hz beside the rate. Empty: the model does not have the leaf.
std::optional<CrystalRatio> crystal_ratio(const MachineModel& model, std::uint64_t tsc_hz);
/// Of a TSC that is its own crystal, or twice that if its rate needs more than 32 bits.
CrystalRatio tsc_as_crystal(std::uint64_t tsc_hz);

}  // namespace vmm
