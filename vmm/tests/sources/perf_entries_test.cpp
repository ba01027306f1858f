#include <gtest/gtest.h>

#include "sources/perf_source_rig.hpp"

// AMD counts VMRUN as a guest branch, at the privilege level that is entered. No AMD host with a PMU was at hand.

namespace vmm::test {
namespace {

using namespace std::chrono_literals;

class AmdHost : public PerfSourceOn {
 protected:
  AmdHost() {
    perf_.host_cpu = {.vendor = HostVendor::amd, .generation = {}};
    perf_.counts_entries = true;
    perf_.enters_each = 100;
    rig_.guest.backend.entered = 12'345;
  }
  static PlanEntry branches() { return counter(pmc0, Counts::branches, 0xC4); }
  [[nodiscard]] std::uint64_t true_branches() const { return rig_.cpu.retired_at.at(LoopingGuest::code + 8); }
};

TEST_F(AmdHost, EntriesAreNoBranches) {
  program({branches(), instructions(pmc1)});
  for (int n = 0; n < 20; ++n) ASSERT_TRUE(run(50us)) << failure_;
  EXPECT_GT(true_branches(), 10'000U);
  EXPECT_EQ(counted_[pmc0], true_branches());
  EXPECT_EQ(counted_[pmc1], truth());
  EXPECT_EQ(statistic("pmu.perf.vmruns"), *rig_.guest.backend.entered - 12'345);
  EXPECT_GT(statistic("pmu.perf.vmruns"), truth() / 100);
}

// Entries while no counter was enabled must not be subtracted.
TEST_F(AmdHost, EntriesWithoutTheCounterAreNotTakenOut) {
  for (int n = 0; n < 5; ++n) {
    program({});
    ASSERT_TRUE(run(50us)) << failure_;
    const std::uint64_t begin = rig_.cpu.retired_at[LoopingGuest::code + 8];
    counted_ = {};
    program({branches()});
    ASSERT_TRUE(run(50us)) << failure_;
    EXPECT_GT(true_branches(), begin);
    EXPECT_EQ(counted_[pmc0], true_branches() - begin);
  }
}

// The host's kick comes too early by the number of entries; another follows for the rest.
TEST_F(AmdHost, OverflowsComeAtTheVeryBranch) {
  for (int n = 0; n < 5; ++n) {
    counted_ = {};
    const std::uint64_t begin = truth();
    program({sampling(branches(), 5'000)});
    run_to(pmc0, 5'000);
    EXPECT_EQ(counted_[pmc0], 5'000U);
    EXPECT_NEAR(static_cast<double>(truth() - begin), 5'000.0 * 8, 8.0);
  }
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U);
  EXPECT_GT(statistic("pmu.perf.vmruns"), 0U);
}

// The host has more entries than it has counted branches, so it cannot have counted them.
TEST_F(AmdHost, HostThatDoesNotCountEntriesIsFoundOut) {
  perf_.counts_entries = false;
  perf_.enters_each = 3;
  program({branches()});
  for (int n = 0; n < 20; ++n) ASSERT_TRUE(run(50us)) << failure_;
  EXPECT_EQ(counted_[pmc0], true_branches());
  EXPECT_EQ(statistic("pmu.perf.vmruns"), 0U);
}

TEST_F(AmdHost, EntriesIntoOneLevelAreNotKnown) {
  PlanEntry kernel = branches();
  kernel.usr = kernel.spec.usr = false;
  program({kernel});
  ASSERT_TRUE(run(50us)) << failure_;
  EXPECT_GT(counted_[pmc0], true_branches());
  EXPECT_EQ(statistic("pmu.perf.vmruns"), 0U);
}

TEST_F(AmdHost, WithoutKvmsStatisticsTheyStay) {
  rig_.guest.backend.entered.reset();
  program({branches()});
  ASSERT_TRUE(run(50us)) << failure_;
  EXPECT_GT(counted_[pmc0], true_branches());
}

TEST_F(AmdHost, IntelsBranchesAreLeftAlone) {
  perf_.host_cpu = {.vendor = HostVendor::intel, .generation = vpmu::Generation::skylake};
  perf_.counts_entries = false;
  program({branches()});
  for (int n = 0; n < 20; ++n) ASSERT_TRUE(run(50us)) << failure_;
  EXPECT_EQ(counted_[pmc0], true_branches());
}

}  // namespace
}  // namespace vmm::test
