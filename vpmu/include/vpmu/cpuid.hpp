#pragma once
#include <cstdint>

#include "vpmu/generation.hpp"

namespace vpmu {

/// What CPUID returns.
struct CpuidRegisters {
  std::uint32_t eax{}, ebx{}, ecx{}, edx{};
};

/// CPUID.0AH of the generation with `gp_counters` general-purpose counters. SDM 2A CPUID, 3B 18.2.
CpuidRegisters cpuid_0ah(const GenerationDesc& generation, unsigned gp_counters);

/// The bits of CPUID.01H:ECX that a PMU with DS needs: DTES64, DS-CPL, PDCM. SDM 3B 17.4.9, 18.18.
inline constexpr std::uint32_t cpuid_01h_ecx = (1U << 2) | (1U << 4) | (1U << 15);
/// The same for CPUID.01H:EDX: DS. SDM 3B 17.4.9.
inline constexpr std::uint32_t cpuid_01h_edx = 1U << 21;

/// IA32_PERF_CAPABILITIES of the generation. SDM 3B 18.18.
std::uint64_t perf_capabilities(const GenerationDesc& generation);

/// Whether a hypervisor may report this IA32_PERF_CAPABILITIES to a guest instead. As in KVM, any bit may be cleared,
/// LBR_FMT and PEBS_FMT only as a whole, and FW_WRITE may be set.
bool may_tell_capabilities(const GenerationDesc& generation, std::uint64_t value);

}  // namespace vpmu
