#include "attach/msr_image.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/model.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t pmc0 = 0xC1, pmc7 = 0xC8, perfevtsel0 = 0x186, misc_enable = 0x1A0, capabilities = 0x345,
                        full_width_pmc0 = 0x4C1;
constexpr std::uint64_t kernel_instructions = 0x4200C0, full = 0x8765'4321'0FED;
constexpr vpmu::PmuConfig haswell{.generation = vpmu::Generation::haswell};

TEST(MsrImage, ACounterIsWrittenAtItsFullWidth) {
  for (const std::uint32_t index : {pmc0, full_width_pmc0}) {
    MsrImage image{haswell, {}};
    EXPECT_TRUE(image.write(index, full));
    EXPECT_EQ(image.read(pmc0), full);
    EXPECT_EQ(image.read(full_width_pmc0), full);
  }
}

// For every model: writing all MSRs of one PMU to another makes the two equal, whether in the list's order or in
// reverse.
TEST(MsrImage, WhatWasReadGoesIntoAnotherPmuInAnyOrder) {
  for (const MachineModel& model : all_machine_models()) {
    SCOPED_TRACE(model.name);
    const vpmu::PmuConfig config{.generation = model.generation};
    vpmu::Pmu pmu{config};
    ASSERT_EQ(pmu.wrmsr(vpmu::MsrIndex{pmc0}, 0x7000'0001), vpmu::MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(vpmu::MsrIndex{perfevtsel0}, kernel_instructions), vpmu::MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(vpmu::MsrIndex{vpmu::msr::IA32_PERF_GLOBAL_CTRL.value()}, 1), vpmu::MsrStatus::ok);
    ASSERT_EQ(pmu.wrmsr(vpmu::MsrIndex{0x600}, 0xFFFF'8000'0000'1000), vpmu::MsrStatus::ok);
    PmuVcpuState state{.pmu = pmu.snapshot(), .unread = 1};
    state.pmu.state.global_status = 1;
    const MsrImage from{config, state};
    std::vector<std::uint32_t> list = pmu_msrs(model.generation);
    ASSERT_GT(list.size(), 40U);
    for (const bool backwards : {false, true}) {
      if (backwards) std::ranges::reverse(list);
      MsrImage to{config, {}};
      for (const std::uint32_t index : list) EXPECT_TRUE(to.write(index, from.read(index))) << std::hex << index;
      for (const std::uint32_t index : list) EXPECT_EQ(to.read(index), from.read(index)) << std::hex << index;
      const auto changed = to.changed();
      ASSERT_TRUE(changed);
      EXPECT_EQ(changed->pmu.state.global_status, 1U);
      EXPECT_EQ(changed->pmu.state.pmc[0], 0x7000'0001U);
    }
  }
}

// A VMM may write back what it has read, over and over: an armed counter must stay armed.
TEST(MsrImage, WritingWhatIsThereChangesNothing) {
  PmuVcpuState state{.pmu = vpmu::Pmu{haswell}.snapshot()};
  state.pmu.state.armed = 1;
  state.pmu.state.pmc[0] = full;
  MsrImage image{haswell, state};
  for (const std::uint32_t index : pmu_msrs(haswell.generation))
    EXPECT_TRUE(image.write(index, image.read(index))) << std::hex << index;
  EXPECT_FALSE(image.changed());
}

TEST(MsrImage, WhatIsNotWrittenStays) {
  PmuVcpuState state{.pmu = vpmu::Pmu{haswell}.snapshot(), .pending_pmi = 1, .unread = 4};
  state.pmu.state.pmc[1] = 5;
  MsrImage image{haswell, state};
  EXPECT_TRUE(image.write(pmc0, 7));
  const auto changed = image.changed();
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->pending_pmi, 1U);
  EXPECT_EQ(changed->unread, 4U);
  EXPECT_EQ(changed->pmu.state.pmc[1], 5U);
}

// VMMs write 1 at power-up. The bits that tell what the processor has must not follow.
TEST(MsrImage, MiscEnableKeepsWhatTheModelHas) {
  MsrImage image{haswell, {}};
  const std::uint64_t before = image.read(misc_enable);
  EXPECT_TRUE(image.write(misc_enable, 1 | vpmu::bit(11) | vpmu::bit(12)));
  EXPECT_EQ(image.read(misc_enable) & (vpmu::bit(7) | vpmu::bit(11) | vpmu::bit(12)),
            before & (vpmu::bit(7) | vpmu::bit(11) | vpmu::bit(12)));
  EXPECT_NE(before & vpmu::bit(7), 0U) << "the PMU is available";
}

TEST(MsrImage, WhatARegisterCannotHoldIsRefused) {
  MsrImage image{haswell, {}};
  EXPECT_FALSE(image.write(capabilities, image.read(capabilities) ^ 1U));
  EXPECT_FALSE(image.write(perfevtsel0, vpmu::bit(40)));
  EXPECT_FALSE(image.write(vpmu::msr::IA32_PERF_GLOBAL_STATUS.value(), vpmu::bit(20)));
  EXPECT_FALSE(image.changed());
}

TEST(MsrImage, CountersThatAnSmtCoreHasNotHoldZero) {
  MsrImage image{haswell, {}};
  EXPECT_TRUE(image.has(pmc7));
  EXPECT_EQ(image.read(pmc7), 0U);
  EXPECT_TRUE(image.write(pmc7, 0));
  EXPECT_FALSE(image.write(pmc7, 1));
  EXPECT_FALSE(image.has(0x10)) << "the TSC is KVM's";
}

}  // namespace
}  // namespace vmm
