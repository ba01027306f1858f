#include "pmu/package_uncore.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "vpmu/bits.hpp"
#include "vpmu/generation.hpp"

namespace vmm::test {
namespace {

using vpmu::bit;
using vpmu::MsrIndex;
using vpmu::MsrStatus;

constexpr MsrIndex global_ctrl{0xE01}, control{0x394}, counter{0x395}, global_status{0xE02};
constexpr std::uint64_t enable = bit(22), interrupt = bit(20), global_enable = bit(29), core_1 = bit(1);

/// Four vCPUs on two cores, with Skylake's uncore, whose clock runs at the TSC's rate.
class PackageUncoreOf : public testing::Test {
 protected:
  std::vector<unsigned> kicked_;
  PackageUncore uncore_{*vpmu::describe(vpmu::Generation::skylake).uncore, 2, 4,
                        [this](unsigned id) { kicked_.push_back(id); }};

  void write(MsrIndex index, std::uint64_t value, std::uint64_t tsc) {
    ASSERT_EQ(uncore_.wrmsr(0, index, value, tsc), MsrStatus::ok);
  }
  void start(std::uint64_t before_overflow, std::uint64_t global, std::uint64_t tsc) {
    write(counter, vpmu::low_bits(44) + 1 - before_overflow, tsc);
    write(control, enable | interrupt, tsc);
    write(global_ctrl, global_enable | global, tsc);
  }
};

TEST_F(PackageUncoreOf, BothThreadsOfTheSelectedCoreHearOfAnOverflowOnce) {
  EXPECT_FALSE(uncore_.is_awaited());
  start(100, core_1, 5000);
  EXPECT_TRUE(uncore_.is_awaited());
  EXPECT_EQ(uncore_.until_overflow(), 100U);
  for (unsigned id = 0; id < 4; ++id) EXPECT_FALSE(uncore_.take_overflow(id, 5099)) << id;
  for (unsigned id = 0; id < 4; ++id) EXPECT_EQ(uncore_.take_overflow(id, 5100), id / 2 == 1) << id;
  for (unsigned id = 0; id < 4; ++id) EXPECT_FALSE(uncore_.take_overflow(id, 5200)) << id;
}

TEST_F(PackageUncoreOf, NobodyAwaitsWhatAsksForNoInterrupt) {
  start(100, 0, 5000);
  EXPECT_FALSE(uncore_.is_awaited());
  EXPECT_EQ(uncore_.until_overflow(), std::nullopt);
  EXPECT_EQ(uncore_.rdmsr(global_status, 6000).value, 1U);
  EXPECT_TRUE(kicked_.empty());
}

TEST_F(PackageUncoreOf, AnOverflowThatAnAccessFindsIsKeptForItsCore) {
  start(100, core_1, 5000);
  EXPECT_EQ(uncore_.rdmsr(counter, 5150).value, 50U);
  EXPECT_TRUE(uncore_.is_awaited());
  EXPECT_TRUE(uncore_.take_overflow(3, 5151));
}

TEST_F(PackageUncoreOf, TheOthersLookAnewWhenAnOverflowIsAwaited) {
  start(100, core_1, 5000);
  EXPECT_EQ(kicked_, (std::vector<unsigned>{1, 2, 3}));
}

// The vCPUs' TSCs may differ a little.
TEST_F(PackageUncoreOf, ALateTscCountsNothingTwice) {
  start(1000, core_1, 5000);
  EXPECT_FALSE(uncore_.take_overflow(1, 5400));
  EXPECT_FALSE(uncore_.take_overflow(2, 5100));
  EXPECT_FALSE(uncore_.take_overflow(1, 5450));
  EXPECT_EQ(uncore_.until_overflow(), 550U);
}

TEST_F(PackageUncoreOf, TimeBeforeTheFirstAccessIsNotCounted) {
  write(control, enable, 1'000'000);
  write(global_ctrl, global_enable, 1'000'010);
  EXPECT_EQ(uncore_.rdmsr(counter, 1'000'030).value, 20U);
}

TEST_F(PackageUncoreOf, IllegalAndForeignAccessesAreTold) {
  EXPECT_EQ(uncore_.wrmsr(0, control, 1, 0), MsrStatus::gp);
  EXPECT_EQ(uncore_.check_wrmsr(control, 1), MsrStatus::gp);
  EXPECT_EQ(uncore_.check_wrmsr(control, enable), MsrStatus::ok);
  EXPECT_EQ(uncore_.rdmsr(MsrIndex{0x391}, 0).status, MsrStatus::unknown);
  EXPECT_EQ(uncore_.wrmsr(0, MsrIndex{0x391}, 0, 0), MsrStatus::unknown);
  write(MsrIndex{0x700}, enable, 0);
  EXPECT_EQ(uncore_.unserved_selects(), 1U);
}

// A box of the last level cache counts from its start on, and every vCPU must then run its model of the caches.
TEST_F(PackageUncoreOf, ABoxCountsWhatTheCachesDoFromItsStartOn) {
  vpmu::LlcCounts llc;
  std::uint64_t& misses =
      llc.slices[0][vpmu::offcore_cell(vpmu::OffcoreRequest::demand_data_read, vpmu::OffcoreSupplier::local_dram)];
  PackageUncore with{*vpmu::describe(vpmu::Generation::skylake).uncore, 1, 3,
                     [this](unsigned id) { kicked_.push_back(id); }, [&llc] { return llc; }};
  constexpr MsrIndex select{0x700}, count{0x706};
  misses = 1000;
  ASSERT_EQ(with.wrmsr(1, select, 0x8834 | enable, 10), MsrStatus::ok);
  EXPECT_FALSE(with.counts_caches());
  EXPECT_TRUE(kicked_.empty());
  ASSERT_EQ(with.wrmsr(1, global_ctrl, global_enable, 20), MsrStatus::ok);
  EXPECT_TRUE(with.counts_caches());
  EXPECT_EQ(kicked_, (std::vector<unsigned>{0, 2})) << "the others have to take part";
  misses = 1700;
  EXPECT_EQ(with.rdmsr(count, 20).value, 700U) << "though the time is the same";
  misses = 1800;
  ASSERT_EQ(with.wrmsr(1, global_ctrl, 0, 30), MsrStatus::ok);
  EXPECT_FALSE(with.counts_caches());
  misses = 5000;
  EXPECT_EQ(with.rdmsr(count, 40).value, 800U);
  write(select, 0x8834 | enable, 0);
  write(global_ctrl, global_enable, 0);
  EXPECT_FALSE(uncore_.counts_caches()) << "nobody tells";
}

}  // namespace
}  // namespace vmm::test
