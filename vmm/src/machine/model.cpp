#include "machine/model.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// A feature word from bit numbers.
template <class... BitNumbers>
constexpr std::uint32_t bits(BitNumbers... numbers) {
  return static_cast<std::uint32_t>((0ULL | ... | vpmu::bit(static_cast<unsigned>(numbers))));
}

/// Skylake client, stepping R0, as "Intel Core i7-6700" (SDM 2A tables 3-10, 3-11). Left out because KVM or this VMM cannot
/// run them, or a PMU guest must not see them: VMX, SMX, EIST, MONITOR, TM2, SDBG, SGX, HLE, RTM, MPX, PT.
constexpr MachineModel skylake{
    .generation = vpmu::Generation::skylake,
    .brand = "Intel(R) Core(TM) i7-6700 CPU",
    .signature = 0x506E3,
    .microcode = 0xF0,
    .features =
        {
            // SSE3 PCLMUL SSSE3 FMA CX16 PCID SSE4.1 SSE4.2 x2APIC MOVBE POPCNT TSC-deadline AES XSAVE AVX F16C RDRAND
            .leaf_1_ecx = bits(0, 1, 9, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30),
            // FPU VME DE PSE TSC MSR PAE MCE CX8 APIC SEP MTRR PGE MCA CMOV PAT PSE36 CLFSH MMX FXSR SSE SSE2 SS HTT
            .leaf_1_edx = bits(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 27, 28),
            // FSGSBASE TSC_ADJUST BMI1 AVX2 SMEP BMI2 ERMS INVPCID no-FPU-CS/DS RDSEED ADX SMAP CLFLUSHOPT
            .leaf_7_ebx = bits(0, 1, 3, 5, 7, 8, 9, 10, 13, 18, 19, 20, 23),
            .leaf_7_ecx = 0,
            // MD_CLEAR IBRS STIBP L1D_FLUSH SSBD
            .leaf_7_edx = bits(10, 26, 27, 28, 31),
            // XSAVEOPT XSAVEC XGETBV_ECX1 XSAVES
            .leaf_d_1_eax = bits(0, 1, 2, 3),
            // LAHF LZCNT PREFETCHW
            .leaf_80000001_ecx = bits(0, 5, 8),
            // SYSCALL NX 1GB-pages RDTSCP long mode
            .leaf_80000001_edx = bits(11, 20, 26, 27, 29),
        },
    .leaf_2 = {.eax = 0x76036301, .ebx = 0x00F0B5FF, .ecx = 0, .edx = 0x00C30000},
    .caches = {CacheShape{CacheShape::Kind::data, 1, 32U << 10U, 8, CacheShape::Shared::core, false},
               CacheShape{CacheShape::Kind::instruction, 1, 32U << 10U, 8, CacheShape::Shared::core, false},
               CacheShape{CacheShape::Kind::unified, 2, 256U << 10U, 4, CacheShape::Shared::core, false},
               CacheShape{CacheShape::Kind::unified, 3, 8U << 20U, 16, CacheShape::Shared::package, true}},
    .physical_bits = 39,
};

}  // namespace

const MachineModel& machine_model(vpmu::Generation generation) {
  switch (generation) {
    case vpmu::Generation::skylake: return skylake;
  }
  return skylake;
}

}  // namespace vmm
