#include <gtest/gtest.h>

#include "accesses.hpp"
#include "uarch/processor_model.hpp"

// Software prefetches in the model of the processor.
namespace vpmu::uarch::test {
namespace {

class Prefetches : public testing::Test {
 protected:
  /// Runs a load; returns what a record would say about it.
  Retirement run(const SeenAccess& access) {
    model_.begin_instruction();
    model_.accessed(access, now_);
    model_.retired(true, false);
    now_ += 1000;  // so that fills are complete
    Retirement r{.has_load = true};
    model_.complete(r);
    return r;
  }

  ProcessorModel model_{*find_profile("skylake")};
  std::uint64_t now_{};
};

// SDM 3B 18.8.1.2: latency is that of demand loads. A prefetch counts as a load that has hit the L1, whatever it
// brings.
TEST_F(Prefetches, APrefetchIsALoadThatBringsItsLine) {
  SeenAccess prefetch = load_of(0x1000, 1);
  prefetch.prefetch = Prefetch::to_l1;
  const Retirement first = run(prefetch);
  EXPECT_EQ(first.load.level, HitLevel::l1);
  EXPECT_TRUE(first.load.stlb_miss);
  EXPECT_EQ(first.load.latency, 0);
  EXPECT_EQ(first.l1d_fills, 1);
  EXPECT_EQ(first.frontend.llc_misses, 1);
  EXPECT_EQ(model_.count(Counts::llc_misses), 1U);
  EXPECT_EQ(run(load_of(0x1008)).load.level, HitLevel::l1);
  EXPECT_EQ(model_.count(Counts::l1_hit), 2U);
  EXPECT_EQ(model_.count(Counts::l1_miss), 0U);
  EXPECT_EQ(model_.count(Counts::loads_met_prefetch), 0U) << "the line had come";
  prefetch.linear = prefetch.physical = 0x2000;
  const std::uint64_t before = model_.count(Counts::load_latency);
  model_.accessed(prefetch, now_);
  model_.retired(true, false);
  EXPECT_EQ(model_.count(Counts::load_latency), before);
  model_.accessed(load_of(0x2008), now_);
  model_.retired(true, false);
  EXPECT_EQ(model_.count(Counts::loads_met_prefetch), 1U);
  EXPECT_EQ(model_.count(Counts::lfb_hit), 1U);
}

TEST_F(Prefetches, APrefetchFromNowhereBringsNothing) {
  SeenAccess prefetch = load_of(0x1000, 1);
  prefetch.prefetch = Prefetch::to_l1;
  prefetch.is_mapped = false;
  EXPECT_EQ(run(prefetch).l1d_fills, 0);
  EXPECT_EQ(run(load_of(0x1000)).load.level, HitLevel::dram);
}

}  // namespace
}  // namespace vpmu::uarch::test
