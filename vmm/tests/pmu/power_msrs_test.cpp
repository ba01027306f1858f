#include "pmu/power_msrs.hpp"

#include <gtest/gtest.h>

namespace vmm {
namespace {

using vpmu::Generation;
using vpmu::MsrStatus;

constexpr PowerState two_seconds{.tsc = 5'000'000'000, .tsc_khz = 2'500'000};

bool has(const vpmu::GenerationDesc& generation, std::uint32_t index) {
  return read_power_msr(generation.generation, index, two_seconds).status == MsrStatus::ok;
}

// SDM 3C tables 35-13 to 35-38: RAPL since Sandy Bridge; the cores' energy on clients and on servers up to Ivy Bridge,
// the graphics' on clients, the memory's on servers and since Haswell.
TEST(PowerMsrs, AreThereWhereTheGenerationHasThem) {
  for (const vpmu::GenerationDesc* const g : vpmu::all_generations()) {
    SCOPED_TRACE(g->name);
    const bool rapl = g->generation >= Generation::sandy_bridge;
    for (const std::uint32_t index : {0x606U, 0x610U, 0x611U, 0x614U, 0x60DU, 0x3FEU}) EXPECT_EQ(has(*g, index), rapl);
    for (const std::uint32_t index : {0x1A2U, 0x1ADU, 0x3F8U, 0x3FAU, 0x3FCU, 0x3FDU, 0x34U})
      EXPECT_TRUE(has(*g, index));
    EXPECT_EQ(has(*g, 0x648), g->generation >= Generation::ivy_bridge);
  }
  const auto& client = vpmu::describe(Generation::skylake);
  const auto& server = vpmu::describe(Generation::haswell_ep);
  EXPECT_TRUE(has(client, 0x639) && has(client, 0x641) && has(client, 0x619) && has(client, 0x64D));
  EXPECT_TRUE(!has(server, 0x639) && !has(server, 0x641) && has(server, 0x619) && !has(server, 0x64D));
  // SDM 3C table 35-38: turbostat ends without these.
  for (const std::uint32_t index : {0x658U, 0x659U, 0x65AU, 0x65BU})
    EXPECT_TRUE(has(client, index) && !has(server, index));
  EXPECT_TRUE(has(vpmu::describe(Generation::ivy_bridge_ep), 0x639));
  EXPECT_FALSE(has(vpmu::describe(Generation::sandy_bridge), 0x619));
  EXPECT_FALSE(has(client, 0x150));
}

// SDM 3B 14.9.1: bits 12:8 of MSR_RAPL_POWER_UNIT are the unit of energy.
TEST(PowerMsrs, EnergyIsAStatedPowerForTheTimeThatHasPassed) {
  for (const vpmu::GenerationDesc* const g : vpmu::all_generations()) {
    if (!has(*g, 0x606)) continue;
    const std::uint64_t unit = read_power_msr(g->generation, 0x606, two_seconds).value >> 8U & 0x1FU;
    EXPECT_EQ(read_power_msr(g->generation, 0x611, two_seconds).value, std::uint64_t{40} << unit)
        << g->name << ": 20 W for two seconds";
    PowerState later = two_seconds;
    later.tsc += 2'500'000'000ULL * 3600 * 24;
    EXPECT_LT(read_power_msr(g->generation, 0x611, later).value, 1ULL << 32U) << "32 bits, which wrap around";
  }
  EXPECT_EQ(read_power_msr(Generation::haswell_ep, 0x619, two_seconds).value, std::uint64_t{6} << 16U)
      << "memory of a server has a unit of its own";
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x611, {}).value, 0U) << "no clock";
}

TEST(PowerMsrs, CountersAreReadOnlyAndLimitsAreAccepted) {
  EXPECT_EQ(write_power_msr(Generation::skylake, 0x611), MsrStatus::gp);
  EXPECT_EQ(write_power_msr(Generation::skylake, 0x610), MsrStatus::ok);
  EXPECT_EQ(write_power_msr(Generation::nehalem, 0x610), MsrStatus::unknown);
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x1AD, two_seconds).value, 0x1919'1919U) << "2.5 GHz on all cores";
  PowerState faster = two_seconds;
  faster.core_khz = 3'600'000;
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x1AD, faster).value, 0x2424'2424U);
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x198, faster).value, 0x2400U) << "IA32_PERF_STATUS";
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x648, faster).value, 0x19U) << "nominal";
  faster.core_khz = 1'200'000;
  EXPECT_EQ(read_power_msr(Generation::skylake, 0x1AD, faster).value, 0x1919'1919U) << "no less than nominal";
}

}  // namespace
}  // namespace vmm
