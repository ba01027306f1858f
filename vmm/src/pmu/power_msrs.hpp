#pragma once
#include <cstdint>

#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"

namespace vmm {

/// What the registers below depend on.
struct PowerState {
  std::uint64_t tsc{};       ///< Of the reading vCPU.
  std::uint64_t tsc_khz{};   ///< Its rate, which is the nominal frequency.
  std::uint64_t core_khz{};  ///< The frequency of the cores; 0: that.
};

/// The MSRs of power management that a CPU of the generation has and CPUID does not announce, so that software which
/// knows the model reads them: ratios, residencies in deep C-states, and RAPL. SDM 3C chapter 35, 3B 14.9.
///
/// Energy is an estimate: a stated power for each domain (power_of()), while the guest's clock runs, whatever it does.
/// No package or core is ever in a C-state below C1: the residencies are 0. `unknown`: the generation does not have the
/// register, or it is not one of these.
vpmu::MsrReadResult read_power_msr(vpmu::Generation generation, std::uint32_t index, const PowerState& now);
/// A write: limits and policies are accepted and change nothing; counters and facts are read-only, #GP.
vpmu::MsrStatus write_power_msr(vpmu::Generation generation, std::uint32_t index);

/// The parts of a processor whose energy RAPL tells.
enum class PowerDomain : std::uint8_t { package, cores, graphics, memory, platform };
/// The power in milliwatts from which a domain's energy follows.
constexpr std::uint64_t power_of(PowerDomain domain) {
  switch (domain) {
    case PowerDomain::package: return 20'000;
    case PowerDomain::cores: return 10'000;
    case PowerDomain::graphics: return 1'000;
    case PowerDomain::memory: return 3'000;
    case PowerDomain::platform: return 30'000;
  }
  return 0;
}

}  // namespace vmm
