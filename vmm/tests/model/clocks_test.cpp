#include "model/clocks.hpp"

#include <gtest/gtest.h>

namespace vmm {
namespace {

// SDM 3C table 35-13: bits 15:8 times the base clock are the TSC's rate.
TEST(ModelClocks, PlatformInfoHasTheRatioOfTheTsc) {
  for (const MachineModel& model : all_machine_models()) {
    const std::uint64_t khz = nominal_tsc_khz(model);
    const bool old = model.generation < vpmu::Generation::sandy_bridge;
    EXPECT_EQ(khz, old ? 2'400'000U : 2'500'000U) << model.name;
    const std::uint64_t ratio = platform_info(model, khz) >> 8U & 0xFFU;
    EXPECT_EQ(ratio, old ? 18U : 25U) << model.name << ": of 133.33 or 100 MHz";
    EXPECT_EQ(platform_info(model, khz) >> 40U & 0xFFU, old ? 6U : 8U) << model.name << ": 800 MHz";
  }
  const MachineModel& skylake = machine_model(vpmu::Generation::skylake);
  EXPECT_EQ(platform_info(skylake, 2'593'907) >> 8U & 0xFFU, 26U) << "the nearest";
  EXPECT_EQ(platform_info(skylake, 1'000'000'000) >> 8U & 0xFFU, 255U) << "the field's largest";
}

}  // namespace
}  // namespace vmm
