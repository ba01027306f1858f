#include "model/guest_cpuid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "model/own_part.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint64_t tsc_hz = 2'445'423'000;

/// A host that supports everything, AMD's and newer CPUs' features included.
CpuidTable rich_host() {
  CpuidTable host;
  host.add(0, {.eax = 0x20});
  host.add(1, {.ecx = ~0U, .edx = ~0U});
  host.add_subleaf(7, 0, {.ebx = ~0U, .ecx = ~0U, .edx = ~0U});
  host.add_subleaf(0xD, 0, {.eax = 0xE7, .ebx = 2696, .ecx = 2696});
  host.add_subleaf(0xD, 1, {.eax = 0x1F});
  host.add_subleaf(0xD, 2, {.eax = 256, .ebx = 576});
  host.add(0x80000001, {.ecx = ~0U, .edx = ~0U});
  return host;
}

CpuidTable guest_of(const CpuidTable& host, unsigned cpus = 2, std::uint32_t apic_id = 0, std::uint64_t hz = tsc_hz,
                    unsigned threads = 2) {
  return guest_cpuid({.model = machine_model(vpmu::Generation::skylake),
                      .supported = host,
                      .tsc_deadline = true,
                      .tsc_hz = hz,
                      .cpus = cpus,
                      .threads_per_core = threads},
                     apic_id);
}

std::string text_of(std::initializer_list<std::uint32_t> words) {
  std::string text;
  for (const auto word : words) {
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return text.substr(0, text.find('\0'));
}

TEST(GuestCpuid, ShowsTheModelsIdentity) {
  const auto guest = guest_of(rich_host());
  const auto leaf_0 = guest.get(0);
  EXPECT_EQ(text_of({leaf_0.ebx, leaf_0.edx, leaf_0.ecx}), "GenuineIntel");
  EXPECT_EQ(guest.get(1).eax, 0x506E3U);
  std::string brand;
  for (std::uint32_t leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    const auto r = guest.get(leaf);
    brand += text_of({r.eax, r.ebx, r.ecx, r.edx});
  }
  EXPECT_EQ(brand, "Intel(R) Core(TM) i7-6700 CPU @ 2.45GHz");
}

TEST(GuestCpuid, HasWhatPebsNeedsEvenWhereTheHostLacksIt) {
  CpuidTable poor;
  poor.add(1, {});
  const auto leaf = guest_of(poor).get(1);
  EXPECT_NE(leaf.ecx & bit(2), 0U) << "DTES64";
  EXPECT_NE(leaf.ecx & bit(4), 0U) << "DS-CPL";
  EXPECT_NE(leaf.ecx & bit(15), 0U) << "PDCM";
  EXPECT_NE(leaf.ecx & bit(31), 0U) << "hypervisor";
  EXPECT_NE(leaf.edx & bit(21), 0U) << "DS";
  EXPECT_EQ(guest_of(poor).get(0xA), (CpuidRegisters{.eax = 0x07300404, .edx = 0x603}));
}

// Linux trusts the TSC of a processor with TSC_ADJUST, and checks the TSC of others.
TEST(GuestCpuid, TscAdjustIsThereForEachGuestThatKnowsItsHypervisor) {
  for (const MachineModel& model : all_machine_models()) {
    const auto has = [&](bool bare_metal) {
      return (guest_cpuid({.model = model,
                           .supported = {},
                           .tsc_deadline = true,
                           .tsc_hz = tsc_hz,
                           .cpus = 1,
                           .bare_metal = bare_metal},
                          0)
                  .get(7)
                  .ebx &
              bit(1)) != 0;
    };
    EXPECT_TRUE(has(false)) << model.name;
    EXPECT_EQ(has(true), model.generation >= vpmu::Generation::haswell) << model.name;
  }
}

TEST(GuestCpuid, HidesWhatTheModelDoesNotHave) {
  const auto guest = guest_of(rich_host());
  const auto leaf_1 = guest.get(1);
  EXPECT_EQ(leaf_1.ecx & bit(5), 0U) << "VMX";
  EXPECT_EQ(leaf_1.ecx & bit(3), 0U) << "MONITOR";
  const auto leaf_7 = guest.get(7);
  EXPECT_EQ(leaf_7.ebx & bit(4), 0U) << "HLE";
  EXPECT_EQ(leaf_7.ebx & bit(11), 0U) << "RTM";
  EXPECT_EQ(leaf_7.ebx & bit(25), 0U) << "PT";
  EXPECT_EQ(leaf_7.ebx & bit(16), 0U) << "AVX-512";
  EXPECT_EQ(leaf_7.ecx & bit(16), 0U) << "LA57";
  EXPECT_EQ(leaf_7.edx & bit(19), 0U) << "architectural LBR";
  EXPECT_EQ(guest.get(0x80000001).ecx & bit(2), 0U) << "SVM";
  EXPECT_EQ(guest.get(0x80000008).eax, 48U << 8U | 39U);
  EXPECT_FALSE(guest.find(0x14));
}

TEST(GuestCpuid, AvxGoesWithXsave) {
  CpuidTable host;
  host.add(1, {.ecx = ~0U & ~static_cast<std::uint32_t>(bit(26)), .edx = ~0U});
  host.add_subleaf(7, 0, {.ebx = ~0U});
  const auto guest = guest_of(host);
  const auto leaf_1 = guest.get(1);
  EXPECT_EQ(leaf_1.ecx & (bit(12) | bit(26) | bit(28) | bit(29)), 0U) << "FMA XSAVE AVX F16C";
  EXPECT_EQ(guest.get(7).ebx & bit(5), 0U) << "AVX2";
  EXPECT_FALSE(guest.find(0xD));
  const auto with = guest_of(rich_host());
  EXPECT_NE(with.get(1).ecx & bit(28), 0U);
  EXPECT_EQ(with.get(0xD).eax, 7U) << "x87, SSE, AVX and nothing newer";
  EXPECT_EQ(with.get(0xD).ecx, 832U);
}

// SDM 2A CPUID. The crystal is that of the model, and the guest multiplies EBX by its kHz in 32 bits.
TEST(GuestCpuid, TscRateIsAMultipleOfTheCrystals) {
  for (const char* const name : {"skylake", "kabylake-u", "skylake-sp"})
    for (const std::uint64_t hz : {std::uint64_t{1'000'000'000}, std::uint64_t{2'500'000'000}, tsc_hz,
                                   std::uint64_t{2'593'907'000}, std::uint64_t{5'000'000'000}}) {
      const MachineModel& model = *find_machine_model(name);
      const CpuidTable host = rich_host();
      const auto guest =
          guest_cpuid({.model = model, .supported = host, .tsc_deadline = true, .tsc_hz = hz, .cpus = 1}, 0);
      const auto leaf = guest.get(0x15);
      EXPECT_EQ(leaf.ecx, model.generation == vpmu::Generation::skylake_sp ? 25'000'000U : 24'000'000U);
      ASSERT_NE(leaf.eax, 0U);
      const std::uint64_t told = std::uint64_t{leaf.ecx} * leaf.ebx / leaf.eax;
      EXPECT_LT(told > hz ? told - hz : hz - told, 100U) << name << ' ' << hz;
      EXPECT_LT(std::uint64_t{leaf.ebx} * (leaf.ecx / 1000), 1ULL << 32U);
      EXPECT_EQ(guest.get(0x16), (CpuidRegisters{.eax = static_cast<std::uint32_t>(hz / 1'000'000),
                                                 .ebx = static_cast<std::uint32_t>(hz / 1'000'000),
                                                 .ecx = 100}));
    }
}

TEST(GuestCpuid, TellsTheHighestFrequencyOfTheCore) {
  const auto told = [](std::uint64_t core_khz) {
    const CpuidTable guest = guest_cpuid({.model = machine_model(vpmu::Generation::skylake),
                                          .supported = {},
                                          .tsc_deadline = true,
                                          .tsc_hz = 2'500'000'000,
                                          .cpus = 1,
                                          .core_khz = core_khz},
                                         0);
    return std::pair{guest.get(0x16).eax, guest.get(0x16).ebx};
  };
  EXPECT_EQ(told(0), (std::pair{2500U, 2500U}));
  EXPECT_EQ(told(3'600'000), (std::pair{2500U, 3600U}));
  EXPECT_EQ(told(1'700'000), (std::pair{2500U, 2500U})) << "it could run at the TSC's";
}

TEST(GuestCpuid, ClocksAreToldWhereTheCpuTellsThem) {
  unsigned with = 0;
  for (const MachineModel& model : all_machine_models()) {
    const CpuidTable host = rich_host();
    const auto guest =
        guest_cpuid({.model = model, .supported = host, .tsc_deadline = true, .tsc_hz = tsc_hz, .cpus = 1}, 0);
    const bool has = model.generation >= vpmu::Generation::skylake;
    EXPECT_EQ(guest.find(0x15).has_value(), has) << model.name;
    EXPECT_EQ(guest.find(0x16).has_value(), has) << model.name;
    EXPECT_EQ(guest.get(0).eax >= 0x15, has) << model.name;
    EXPECT_GE(guest.get(0).eax, 0xBU) << model.name;
    with += has ? 1 : 0;
  }
  EXPECT_EQ(with, 5U);
}

TEST(GuestCpuid, ProcessorsAreThreadsOfTwoThreadCores) {
  const auto guest = guest_of(rich_host(), 6, 5);
  EXPECT_EQ(guest.get(1).ebx >> 24U, 5U);
  EXPECT_EQ(guest.get(0xB, 0), (CpuidRegisters{.eax = 1, .ebx = 2, .ecx = 0x100, .edx = 5}));
  EXPECT_EQ(guest.get(0xB, 1), (CpuidRegisters{.eax = 3, .ebx = 8, .ecx = 0x201, .edx = 5}));
  const auto l3 = guest.get(4, 3);
  EXPECT_EQ((l3.eax >> 14U & 0xFFFU) + 1, 8U) << "processors that share the L3";
  EXPECT_EQ((l3.ebx >> 22U) + 1, 16U);
  EXPECT_EQ(guest.get(4, 4).eax & 0x1FU, 0U) << "end of the list";
}

// SDM 3A 8.9.1: leaf 0BH, leaf 4, leaf 1 and leaf 0AH tell of the same threads and cores, for any machine.
TEST(GuestCpuid, TopologyIsThatOfTheMachine) {
  const CpuidTable host = rich_host();
  for (const MachineModel& model : all_machine_models())
    for (const unsigned threads : {1U, 2U})
      for (const unsigned cpus : {1U, 2U, 3U, 4U, 5U, 8U, 63U, 64U}) {
        const unsigned id = cpus - 1;
        const auto guest = guest_cpuid({.model = model,
                                        .supported = host,
                                        .tsc_deadline = true,
                                        .tsc_hz = tsc_hz,
                                        .cpus = cpus,
                                        .threads_per_core = threads},
                                       id);
        SCOPED_TRACE(std::string{model.name} + ", " + std::to_string(cpus) + " CPUs, threads " +
                     std::to_string(threads));
        const auto thread_level = guest.get(0xB, 0), core_level = guest.get(0xB, 1);
        const unsigned ids = 1U << core_level.eax;
        EXPECT_EQ(1U << thread_level.eax, threads);
        EXPECT_EQ(thread_level.ebx, threads);
        EXPECT_GE(ids, cpus);
        EXPECT_LT(ids, 2 * std::max(cpus, threads));
        EXPECT_EQ(guest.get(0xB, 0).edx, id);
        EXPECT_EQ(guest.get(1).ebx >> 24U, id);
        EXPECT_EQ(guest.get(1).ebx >> 16U & 0xFFU, ids);
        EXPECT_EQ((guest.get(1).edx & bit(28)) != 0, ids > 1) << "HTT";
        for (std::uint32_t cache = 0; cache < 4; ++cache) {
          const auto leaf = guest.get(4, cache);
          EXPECT_EQ((leaf.eax >> 14U & 0xFFFU) + 1, cache == 3 ? ids : threads) << "sharers of cache " << cache;
          EXPECT_EQ((leaf.eax >> 26U) + 1, ids / threads) << "cores";
        }
        const vpmu::GenerationDesc& pmu = vpmu::describe(model.generation);
        EXPECT_EQ(guest.get(0xA).eax >> 8U & 0xFFU, threads == 1 ? pmu.gp_counters_no_smt : pmu.gp_counters);
      }
}

// SDM 3B 18.2: without SMT the core's only thread has all of the core's counters.
TEST(GuestCpuid, ProcessorsWithoutSmtHaveACoreAndItsCountersEach) {
  const auto guest = guest_of(rich_host(), 6, 5, tsc_hz, 1);
  EXPECT_EQ(guest.get(0xB, 0), (CpuidRegisters{.eax = 0, .ebx = 1, .ecx = 0x100, .edx = 5}));
  EXPECT_EQ(guest.get(0xB, 1), (CpuidRegisters{.eax = 3, .ebx = 8, .ecx = 0x201, .edx = 5}));
  EXPECT_EQ(guest.get(0xA).eax, 0x0730'0804U);
  EXPECT_EQ(guest_of(rich_host(), 6, 5).get(0xA).eax, 0x0730'0404U);
}

// Because of KVM's signature Linux uses x2APIC; because no feature is shown it uses its own TSC clock, not kvmclock.
TEST(GuestCpuid, HypervisorLeafHasKvmsSignatureAndNoFeature) {
  const auto guest = guest_of(rich_host());
  const auto leaf = guest.get(0x40000000);
  EXPECT_EQ(leaf.eax, 0x40000001U);
  EXPECT_EQ(text_of({leaf.ebx, leaf.ecx, leaf.edx}), "KVMKVMKVM");
  EXPECT_EQ(guest.find(0x40000001), CpuidRegisters{});
}

// SDM 2A CPUID, leaf 80000006H: 7 is "see leaf 4".
TEST(GuestCpuid, TellsTheWaysOfTheL2InBothLeaves) {
  const auto told = [](const MachineModel& model, const std::array<CacheShape, 4>& caches) {
    const CpuidTable guest = guest_cpuid(
        {.model = model, .supported = {}, .tsc_deadline = true, .tsc_hz = tsc_hz, .cpus = 1, .caches = caches}, 0);
    return std::pair{guest.get(0x80000006).ecx >> 12 & 0xF, (guest.find(4, 2)->ebx >> 22) + 1};
  };
  const std::map<std::uint32_t, std::uint32_t> codes{{4, 4}, {8, 6}, {16, 8}};
  for (const MachineModel& model : all_machine_models()) {
    const auto [code, ways] = told(model, model.caches);
    ASSERT_TRUE(codes.contains(ways)) << model.name << ": " << ways;
    EXPECT_EQ(code, codes.at(ways)) << model.name;
  }
  const MachineModel& skylake = machine_model(vpmu::Generation::skylake);
  auto caches = skylake.caches;
  caches[2].ways = 5;
  EXPECT_EQ(told(skylake, caches), (std::pair<std::uint32_t, std::uint32_t>{7, 5}));
}

TEST(GuestCpuid, TellsTheSizesOfCachesThatAreChanged) {
  const CpuidTable host = rich_host();
  const MachineModel& model = machine_model(vpmu::Generation::skylake);
  vpmu::uarch::ProfileChanges changes;
  const auto guest_with = [&] {
    return guest_cpuid({.model = model,
                        .supported = host,
                        .tsc_deadline = true,
                        .tsc_hz = tsc_hz,
                        .cpus = 1,
                        .caches = changed_caches(model, changes)},
                       0);
  };
  const auto bytes = [](const CpuidTable& guest, std::uint32_t level) {
    const auto leaf = guest.find(4, level).value_or(CpuidRegisters{});
    return std::uint64_t{(leaf.ebx >> 22) + 1} * 64 * (leaf.ecx + 1);
  };
  EXPECT_EQ(changed_caches(model, changes)[3].ways, model.caches[3].ways);
  EXPECT_EQ(bytes(guest_with(), 3), 8U << 20) << "as the model has it";
  ASSERT_FALSE(changes.add("l1d=48K,l2=512K,l3=6M,dram=200"));
  const CpuidTable guest = guest_with();
  EXPECT_EQ(bytes(guest, 0), 48U << 10);
  EXPECT_EQ(bytes(guest, 1), 32U << 10) << "of code";
  EXPECT_EQ(bytes(guest, 2), 512U << 10);
  EXPECT_EQ(bytes(guest, 3), 6U << 20);
  EXPECT_EQ((guest.find(4, 3)->ebx >> 22) + 1, 12U) << "ways";
  EXPECT_EQ(guest.get(0x80000006).ecx >> 16, 512U) << "KiB of the L2";
}

TEST(GuestCpuid, TellsOfNoHypervisorOnBareMetal) {
  const CpuidTable host = rich_host();
  const CpuidRequest request{.model = machine_model(vpmu::Generation::skylake),
                             .supported = host,
                             .tsc_deadline = true,
                             .tsc_hz = tsc_hz,
                             .cpus = 2,
                             .bare_metal = true};
  const auto guest = guest_cpuid(request, 0);
  EXPECT_EQ(guest.get(1).ecx & bit(31), 0U);
  EXPECT_EQ(guest.find(0x40000000), std::nullopt);
  EXPECT_EQ(guest.get(1).ecx | bit(31), guest_of(host).get(1).ecx) << "and is the same otherwise";
}

}  // namespace
}  // namespace vmm
