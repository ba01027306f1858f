#pragma once
#include <cstdint>

namespace vpmu::exec {

/// What a CPU has or lacks, as far as the meaning of an instruction depends on it. The names are CPUID's, SDM 2A tables
/// 3-8, 3-10 and 3-11; `vex_*` are the forms of two features together.
enum class CpuFeature : std::uint8_t {
  baseline,  ///< Every 64-bit CPU: x87, MMX, SSE, SSE2, FXSR.
  sse3,
  pclmulqdq,
  ssse3,
  fma,
  sse41,
  sse42,
  movbe,
  aes,
  avx,
  f16c,
  bmi1,
  avx2,
  bmi2,
  adx,
  vaes,
  vpclmulqdq,
  vex_aes,
  vex_pclmulqdq,
  // The engine or its owner does these itself, whatever the host has.
  lzcnt,
  smap,
  clflushopt,
  xsave,
  xsaveopt,
  xsavec,
  xgetbv_ecx1,
  xsaves,
  rdrand,
  rdseed,
  rdtscp,
  fsgsbase,
};

/// Whether the CPU that this runs on can run instructions of the feature. CPUID's answer, and for AVX XGETBV's. Only
/// for those up to vex_pclmulqdq.
[[nodiscard]] bool host_has(CpuFeature feature);

}  // namespace vpmu::exec
