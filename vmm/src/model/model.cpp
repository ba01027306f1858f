#include "model/model.hpp"

#include <algorithm>

#include "vpmu/bits.hpp"

// Features are those of SDM 2A tables 3-10 and 3-11 that came with each microarchitecture (volume 1 says which). Left
// out because KVM or this VMM cannot run them, or a guest with a PMU must not see them: VMX, SMX, EIST, MONITOR, TM2,
// SDBG, SGX, HLE, RTM, MPX, PT. In all models, though some of the CPUs lack them, as with other hypervisors: x2APIC,
// the TSC deadline, and the features that spare a kernel its workarounds for leaks of speculation.
namespace vmm {
namespace {

using vpmu::Generation;

/// A feature word from bit numbers.
template <class... BitNumbers>
constexpr std::uint32_t bits(BitNumbers... numbers) {
  return static_cast<std::uint32_t>((0ULL | ... | vpmu::bit(static_cast<unsigned>(numbers))));
}

template <class Change>
constexpr MachineModel derive(MachineModel from, Change change) {
  change(from);
  return from;
}

constexpr std::array<CacheShape, 4> caches(std::uint32_t instruction_ways, std::uint32_t l2_kib, std::uint32_t l2_ways,
                                           std::uint32_t l3_kib, std::uint32_t l3_ways, bool inclusive = true) {
  using enum CacheShape::Kind;
  return {CacheShape{data, 1, 32U << 10U, 8, CacheShape::Shared::core, false},
          CacheShape{instruction, 1, 32U << 10U, instruction_ways, CacheShape::Shared::core, false},
          CacheShape{unified, 2, l2_kib << 10U, l2_ways, CacheShape::Shared::core, false},
          CacheShape{unified, 3, l3_kib << 10U, l3_ways, CacheShape::Shared::package, inclusive}};
}

/// The same microarchitecture under another signature.
constexpr MachineModel variant(MachineModel of, std::string_view name, std::uint32_t signature, std::uint32_t microcode,
                               std::string_view brand) {
  of.name = name;
  of.signature = signature;
  of.microcode = microcode;
  of.brand = brand;
  return of;
}
constexpr MachineModel server(MachineModel m, Generation generation, std::uint8_t physical_bits,
                              const std::array<CacheShape, 4>& shapes) {
  m.generation = generation;
  m.physical_bits = physical_bits;
  m.caches = shapes;
  return m;
}

constexpr MachineModel nehalem{
    .name = "nehalem",
    .generation = Generation::nehalem,
    .brand = "Intel(R) Core(TM) i7 CPU 920",
    .signature = 0x106A5,
    .microcode = 0x1D,
    .features =
        {
            // SSE3 SSSE3 CX16 SSE4.1 SSE4.2 x2APIC POPCNT TSC-deadline
            .leaf_1_ecx = bits(0, 9, 13, 19, 20, 21, 23, 24),
            // FPU VME DE PSE TSC MSR PAE MCE CX8 APIC SEP MTRR PGE MCA CMOV PAT PSE36 CLFSH MMX FXSR SSE SSE2 SS HTT
            .leaf_1_edx = bits(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 27, 28),
            .leaf_7_ebx = 0,
            .leaf_7_ecx = 0,
            // MD_CLEAR IBRS STIBP L1D_FLUSH SSBD
            .leaf_7_edx = bits(10, 26, 27, 28, 31),
            .leaf_d_1_eax = 0,
            // LAHF
            .leaf_80000001_ecx = bits(0),
            // SYSCALL NX RDTSCP long mode
            .leaf_80000001_edx = bits(11, 20, 27, 29),
        },
    .leaf_2 = {.eax = 0x55035A01, .ebx = 0x00F0B2E4, .ecx = 0, .edx = 0x09CA212C},
    .caches = caches(4, 256, 8, 8 << 10, 16),
    .physical_bits = 36,
    .last_leaf = 0xB,
};
constexpr MachineModel nehalem_ex = server(variant(nehalem, "nehalem-ex", 0x206E6, 0x0D, "Intel(R) Xeon(R) CPU X7560"),
                                           Generation::nehalem_ex, 44, caches(4, 256, 8, 24 << 10, 24));

constexpr MachineModel westmere = derive(nehalem, [](MachineModel& m) {
  m = variant(m, "westmere", 0x20652, 0x11, "Intel(R) Core(TM) i5 CPU 660");
  m.generation = Generation::westmere;
  m.features.leaf_1_ecx |= bits(1, 17, 25);  // PCLMUL PCID AES
  m.features.leaf_80000001_edx |= bits(26);  // 1GB-pages
  m.caches = caches(4, 256, 8, 4 << 10, 16);
});
constexpr MachineModel westmere_ep =
    server(variant(westmere, "westmere-ep", 0x206C2, 0x1F, "Intel(R) Xeon(R) CPU X5650"), Generation::westmere_ep, 40,
           caches(4, 256, 8, 12 << 10, 16));
constexpr MachineModel westmere_ex =
    server(variant(westmere, "westmere-ex", 0x206F2, 0x3A, "Intel(R) Xeon(R) CPU E7-4870"), Generation::westmere_ex, 44,
           caches(4, 256, 8, 24 << 10, 24));

constexpr MachineModel sandy_bridge = derive(westmere, [](MachineModel& m) {
  m = variant(m, "sandybridge", 0x206A7, 0x2F, "Intel(R) Core(TM) i7-2600 CPU");
  m.generation = Generation::sandy_bridge;
  m.features.leaf_1_ecx |= bits(26, 28);  // XSAVE AVX
  m.features.leaf_d_1_eax = bits(0);      // XSAVEOPT
  m.last_leaf = 0xD;
  m.leaf_2 = {.eax = 0x76035A01, .ebx = 0x00F0B2FF, .ecx = 0, .edx = 0x00CA0000};
  m.caches = caches(8, 256, 8, 8 << 10, 16);
});
constexpr MachineModel sandy_bridge_ep =
    server(variant(sandy_bridge, "sandybridge-ep", 0x206D7, 0x71A, "Intel(R) Xeon(R) CPU E5-2660"),
           Generation::sandy_bridge_ep, 46, caches(8, 256, 8, 20 << 10, 20));

constexpr MachineModel ivy_bridge = derive(sandy_bridge, [](MachineModel& m) {
  m = variant(m, "ivybridge", 0x306A9, 0x21, "Intel(R) Core(TM) i7-3770 CPU");
  m.generation = Generation::ivy_bridge;
  m.features.leaf_1_ecx |= bits(29, 30);   // F16C RDRAND
  m.features.leaf_7_ebx |= bits(0, 7, 9);  // FSGSBASE SMEP ERMS
  m.leaf_2.eax = 0x76036301;
});
constexpr MachineModel ivy_bridge_ep =
    server(variant(ivy_bridge, "ivybridge-ep", 0x306E4, 0x42E, "Intel(R) Xeon(R) CPU E5-2660 v2"),
           Generation::ivy_bridge_ep, 46, caches(8, 256, 8, 25 << 10, 20));

constexpr MachineModel haswell = derive(ivy_bridge, [](MachineModel& m) {
  m = variant(m, "haswell", 0x306C3, 0x28, "Intel(R) Core(TM) i7-4770 CPU");
  m.generation = Generation::haswell;
  m.features.leaf_1_ecx |= bits(12, 22);              // FMA MOVBE
  m.features.leaf_7_ebx |= bits(1, 3, 5, 8, 10, 13);  // TSC_ADJUST BMI1 AVX2 BMI2 INVPCID no-FPU-CS/DS
  m.features.leaf_80000001_ecx |= bits(5);            // LZCNT
  m.leaf_2 = {.eax = 0x76036301, .ebx = 0x00F0B5FF, .ecx = 0, .edx = 0x00C10000};
  m.physical_bits = 39;
});
constexpr MachineModel haswell_ep =
    server(variant(haswell, "haswell-ep", 0x306F2, 0x49, "Intel(R) Xeon(R) CPU E5-2660 v3"), Generation::haswell_ep, 46,
           caches(8, 256, 8, 25 << 10, 20));

constexpr MachineModel broadwell = derive(haswell, [](MachineModel& m) {
  m = variant(m, "broadwell", 0x306D4, 0x2F, "Intel(R) Core(TM) i7-5600U CPU");
  m.generation = Generation::broadwell;
  m.features.leaf_7_ebx |= bits(18, 19, 20);  // RDSEED ADX SMAP
  m.features.leaf_80000001_ecx |= bits(8);    // PREFETCHW
  m.leaf_2.edx = 0x00C3'0000;
  m.last_leaf = 0x14;
});
constexpr MachineModel broadwell_de =
    server(variant(broadwell, "broadwell-de", 0x50663, 0x700001C, "Intel(R) Xeon(R) CPU D-1540"),
           Generation::broadwell_de, 46, caches(8, 256, 8, 12 << 10, 12));
constexpr MachineModel broadwell_ep =
    server(variant(broadwell, "broadwell-ep", 0x406F1, 0xB000040, "Intel(R) Xeon(R) CPU E5-2660 v4"),
           Generation::broadwell_ep, 46, caches(8, 256, 8, 35 << 10, 20));

constexpr MachineModel skylake = derive(broadwell, [](MachineModel& m) {
  m = variant(m, "skylake", 0x506E3, 0xF0, "Intel(R) Core(TM) i7-6700 CPU");
  m.generation = Generation::skylake;
  m.features.leaf_7_ebx |= bits(23);  // CLFLUSHOPT
  m.last_leaf = 0x16;
  m.features.leaf_d_1_eax |= bits(1, 2, 3);  // XSAVEC XGETBV_ECX1 XSAVES
  m.caches = caches(8, 256, 4, 8 << 10, 16);
});
constexpr MachineModel skylake_sp =
    server(variant(skylake, "skylake-sp", 0x50654, 0x2007006, "Intel(R) Xeon(R) Gold 6130 CPU"), Generation::skylake_sp,
           46, caches(8, 1 << 10, 16, 22 << 10, 11, false));

/// machine_model() gives the first one of a generation.
constexpr std::array models{
    nehalem,
    variant(nehalem, "nehalem-lynnfield", 0x106E5, 0x0A, "Intel(R) Core(TM) i7 CPU 870"),
    variant(nehalem, "nehalem-havendale", 0x106F0, 0x01, "Genuine Intel(R) CPU"),
    nehalem_ex,
    westmere,
    westmere_ep,
    westmere_ex,
    sandy_bridge,
    sandy_bridge_ep,
    ivy_bridge,
    ivy_bridge_ep,
    haswell,
    variant(haswell, "haswell-ult", 0x40651, 0x26, "Intel(R) Core(TM) i7-4600U CPU"),
    variant(haswell, "haswell-gt3e", 0x40661, 0x1C, "Intel(R) Core(TM) i7-4770R CPU"),
    haswell_ep,
    broadwell,
    variant(broadwell, "broadwell-h", 0x40671, 0x22, "Intel(R) Core(TM) i7-5775C CPU"),
    broadwell_de,
    broadwell_ep,
    skylake,
    variant(skylake, "skylake-u", 0x406E3, 0xF0, "Intel(R) Core(TM) i7-6600U CPU"),
    skylake_sp,
    variant(skylake, "kabylake-u", 0x806E9, 0xF0, "Intel(R) Core(TM) i7-7500U CPU"),
    variant(skylake, "kabylake", 0x906E9, 0xF0, "Intel(R) Core(TM) i7-7700 CPU"),
};

}  // namespace

const MachineModel& machine_model(vpmu::Generation generation) {
  return *std::ranges::find(models, generation, &MachineModel::generation);
}

CpuidTable feature_table(const MachineModel& model) {
  const FeatureWords& f = model.features;
  CpuidTable table;
  table.add(1, {.ecx = f.leaf_1_ecx, .edx = f.leaf_1_edx});
  table.add_subleaf(7, 0, {.ebx = f.leaf_7_ebx, .ecx = f.leaf_7_ecx, .edx = f.leaf_7_edx});
  table.add_subleaf(0xD, 1, {.eax = f.leaf_d_1_eax});
  table.add(0x8000'0001, {.ecx = f.leaf_80000001_ecx, .edx = f.leaf_80000001_edx});
  return table;
}

std::span<const MachineModel> all_machine_models() { return models; }

const MachineModel* find_machine_model(std::string_view name) {
  const auto* const found = std::ranges::find(models, name, &MachineModel::name);
  return found == models.end() ? nullptr : found;
}

}  // namespace vmm
