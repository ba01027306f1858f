#include "attach/attached_cpuid.hpp"

#include <gtest/gtest.h>

namespace vmm {
namespace {

constexpr std::uint32_t tsc_deadline = 1U << 24U;

/// CPUID that a VMM on an AMD host gives to the third of four vCPUs, with `threads` threads per core.
CpuidTable vmms(std::uint32_t threads, std::uint32_t ecx = ~std::uint32_t{0}) {
  CpuidTable table;
  table.add(0, {.eax = 0xD, .ebx = 0x68747541, .ecx = 0x444d4163, .edx = 0x69746e65});
  table.add(1, {.eax = 0x00A20F10, .ebx = 2U << 24U | 4U << 16U | 8U << 8U, .ecx = ecx, .edx = ~std::uint32_t{0}});
  table.add_subleaf(0xB, 0, {.eax = threads - 1, .ebx = threads, .ecx = 1U << 8U, .edx = 2});
  table.add_subleaf(0xB, 1, {.eax = 2, .ebx = 4, .ecx = 2U << 8U | 1U, .edx = 2});
  table.add(0x40000000, {.eax = 0x40000001, .ebx = 0x4b4d564b, .ecx = 0x564b4d56, .edx = 0x4d});
  table.add(0x40000001, {.eax = 0x01007efb});
  table.add(0x80000001, {.edx = ~std::uint32_t{0}});
  return table;
}

const MachineModel& model() { return *find_machine_model("haswell"); }

TEST(AttachedCpuid, IsTheModelsOnTheVmmsTopology) {
  const CpuidTable table = attached_cpuid(model(), vmms(1), 2'500'000'000);
  EXPECT_EQ(table.get(0).ebx, 0x756e6547U) << "GenuineIntel";
  EXPECT_EQ(table.get(1).eax, model().signature);
  EXPECT_EQ(table.get(1).ebx >> 24U, 2U) << "the APIC id";
  EXPECT_NE(table.get(1).edx & 1U << 21U, 0U) << "DS";
  EXPECT_EQ(table.get(0xA).eax & 0xFFU, 3U);
  for (std::uint32_t level = 0; level < 2; ++level) EXPECT_EQ(table.get(0xB, level), vmms(1).get(0xB, level)) << level;
  unsigned topologies = 0;
  for (const auto& entry : table.entries()) topologies += entry.function == 0xB ? 1 : 0;
  EXPECT_EQ(topologies, 2U);
}

// Nothing else may tell them: the command line is not ours, and QEMU's microvm has no timer to measure by.
TEST(AttachedCpuid, TellsTheClocksOnEveryModel) {
  for (const MachineModel& m : all_machine_models()) {
    const CpuidTable table = attached_cpuid(m, vmms(1), 5'000'000'000);
    const CpuidRegisters ratio = table.get(0x15);
    ASSERT_NE(ratio.eax, 0U) << m.name;
    EXPECT_NEAR(static_cast<double>(ratio.ecx) * ratio.ebx / ratio.eax, 5e9, 100) << m.name;
    EXPECT_EQ(table.get(0x16).eax, 5000U) << m.name;
    EXPECT_GE(table.get(0).eax, 0x16U) << m.name;
  }
}

// With kvmclock the guest would not use the TSC as its clock, and PEBS time stamps are in terms of the TSC.
TEST(AttachedCpuid, NoFeatureOfKvmIsLeft) {
  EXPECT_EQ(attached_cpuid(model(), vmms(2), 2'500'000'000).get(0x40000001).eax, 0U);
}

TEST(AttachedCpuid, ACoreWithoutSmtHasAllItsCounters) {
  EXPECT_EQ(threads_per_core(vmms(1)), 1U);
  EXPECT_EQ(threads_per_core(vmms(2)), 2U);
  EXPECT_EQ(threads_per_core(CpuidTable{}), 2U);
  EXPECT_EQ(attached_cpuid(model(), vmms(1), 1'000'000'000).get(0xA).eax >> 8U & 0xFF, 8U);
  EXPECT_EQ(attached_cpuid(model(), vmms(2), 1'000'000'000).get(0xA).eax >> 8U & 0xFF, 4U);
}

TEST(AttachedCpuid, TheTimerOfTheTscComesFromTheVmm) {
  EXPECT_NE(attached_cpuid(model(), vmms(2), 1'000'000'000).get(1).ecx & tsc_deadline, 0U);
  EXPECT_EQ(attached_cpuid(model(), vmms(2, ~tsc_deadline), 1'000'000'000).get(1).ecx & tsc_deadline, 0U);
}

}  // namespace
}  // namespace vmm
