#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "pebs_session.hpp"

// Load latency: rules L1 to L12.

namespace vpmu::test {
namespace {

using S = PebsSession;

void start(S& s, unsigned counter, std::uint64_t enable, Select form = load_latency, std::uint64_t period = 100) {
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 30);
  s.start(counter, form, period);
  s.write(msr::IA32_PEBS_ENABLE, enable);
}
Retirement slow_load(S& s, unsigned k, std::uint16_t latency = 100) {
  Retirement r = s.load(k);
  r.load.latency = latency;
  return r;
}

// Rules L2, L11, L12: both enable bits are needed; without them nothing is counted and nothing recorded.
TEST(LoadLatency, NeedsBothEnableBits) {
  for (const std::uint64_t enable : {std::uint64_t{0}, bit(3), bit(35), bit(2) | bit(35)}) {
    S s;
    start(s, 3, enable, load_latency, 1);
    for (unsigned k = 1; k <= 5; ++k) s.retire(slow_load(s, k));
    EXPECT_EQ(s.pmc(3), minus(1)) << enable;
    EXPECT_EQ(s.records(), 0U) << enable;
  }
}

// Rule L2: CMASK and INV have to be 0.
TEST(LoadLatency, CountsNothingWithCmaskOrInv) {
  for (const Select& form :
       {Select{.event = 0xCD, .umask = 0x01, .cmask = 1}, Select{.event = 0xCD, .umask = 0x01, .inv = true},
        Select{.event = 0xCD, .umask = 0x01, .cmask = 16, .inv = true}}) {
    S s;
    start(s, 3, both_enables(3), form, 1);
    for (unsigned k = 1; k <= 5; ++k) s.retire(slow_load(s, k));
    EXPECT_EQ(s.pmc(3), minus(1));
    EXPECT_EQ(s.records(), 0U);
  }
}

// Rule L10.
TEST(LoadLatency, RunsOnEachOfTheFirstFourCounters) {
  for (unsigned i = 0; i < 4; ++i) {
    S s;
    start(s, i, both_enables(i), load_latency, 1);
    s.retire(slow_load(s, 1));
    s.retire(slow_load(s, 2));
    ASSERT_EQ(s.records(), 1U) << i;
    EXPECT_EQ(s.record(0)[Slot::latency], 100U);
  }
}

// SDM 3B 18.8.1.2: "for retired demand load operations".
TEST(LoadLatency, IgnoresSoftwarePrefetches) {
  S s;
  start(s, 3, both_enables(3));
  Retirement r = slow_load(s, 1);
  r.kind = InstructionClass::prefetch_t0;
  s.retire(r);
  EXPECT_EQ(s.pmc(3), minus(100));
}

// Rule L3.
TEST(LoadLatency, IgnoresStores) {
  S s;
  start(s, 3, both_enables(3));
  Retirement r = s.store(1);
  r.store.latency = 100;
  s.retire(r);
  EXPECT_EQ(s.pmc(3), minus(100));
}

// Rule L2: the comparison is strict, at the whole width of the threshold.
TEST(LoadLatency, ThresholdIsStrict) {
  for (const std::uint16_t threshold : std::initializer_list<std::uint16_t>{3, 4, 128, 0xFFFE}) {
    S s;
    start(s, 3, both_enables(3));
    s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, threshold);
    s.retire(slow_load(s, 1, threshold));
    EXPECT_EQ(s.pmc(3), minus(100)) << threshold;
    s.retire(slow_load(s, 2, static_cast<std::uint16_t>(threshold + 1)));
    EXPECT_EQ(s.pmc(3), minus(99)) << threshold;
  }
}

// Rule L2: the manual's least threshold is 3. A smaller value reads back as written, and here the same loads qualify.
TEST(LoadLatency, ThresholdsBelowTheLeastDoAsTheLeast) {
  for (const std::uint16_t threshold : std::initializer_list<std::uint16_t>{0, 1, 2, 3}) {
    S s;
    start(s, 3, both_enables(3), load_latency, 2);
    s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, threshold);
    EXPECT_EQ(s.read(msr::MSR_PEBS_LD_LAT_THRESHOLD), threshold);
    EXPECT_EQ(s.pmu.plan().entries[0].latency_over, threshold);
    for (unsigned k = 1; k <= 3; ++k) s.retire(slow_load(s, k, 4));
    ASSERT_EQ(s.records(), 1U) << threshold;
    EXPECT_EQ(s.record(0)[Slot::latency], 4U);
    EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
  }
}

// Rule L7: a source that cannot measure says 0; its loads all qualify and the record says 0.
TEST(LoadLatency, LoadsOfUnknownLatencyQualify) {
  S s;
  start(s, 3, both_enables(3), load_latency, 1);
  s.retire(slow_load(s, 1, 0));
  s.retire(slow_load(s, 2, 0));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::latency], 0U);
  EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(2).value());
}

// Rule L6: a load under the threshold does not trigger.
TEST(LoadLatency, FastLoadDoesNotTrigger) {
  S s;
  start(s, 3, both_enables(3), load_latency, 1);
  s.retire(slow_load(s, 1));
  s.retire(slow_load(s, 2, 10));
  EXPECT_EQ(s.records(), 0U);
  s.retire(slow_load(s, 3));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.eventing_ip(0), S::a(3).value());
}

// Rule L8: SDM 3B tables 18-24 and 18-33; LOCAL_DRAM is AH on this processor.
TEST(LoadLatency, DataSourceTellsLevelTlbAndLock) {
  struct Row {
    HitLevel level;
    bool stlb_miss, locked;
    std::uint64_t code;
  };
  for (const Row& row : {Row{HitLevel::unknown, false, false, 0x0}, Row{HitLevel::l1, false, false, 0x1},
                         Row{HitLevel::lfb, false, false, 0x2}, Row{HitLevel::l2, false, false, 0x3},
                         Row{HitLevel::l3, false, false, 0x4}, Row{HitLevel::dram, false, false, 0xA},
                         Row{HitLevel::io, false, false, 0xE}, Row{HitLevel::uncached, false, false, 0xF},
                         Row{HitLevel::l2, true, false, 0x13}, Row{HitLevel::l1, false, true, 0x21},
                         Row{HitLevel::dram, true, true, 0x3A}}) {
    S s;
    start(s, 3, both_enables(3), load_latency, 1);
    for (unsigned k = 1; k <= 2; ++k) {
      Retirement r = slow_load(s, k);
      r.load.level = row.level;
      r.load.stlb_miss = row.stlb_miss;
      r.load.locked = row.locked;
      s.retire(r);
    }
    ASSERT_EQ(s.records(), 1U);
    EXPECT_EQ(s.record(0)[Slot::data_source], row.code);
  }
}

/// Which of `loads` loads are tagged.
std::vector<bool> tags(std::uint32_t interval, std::uint64_t seed, unsigned loads) {
  S s{PmuConfig{.seed = seed, .policies = {.load_tag_interval = interval}}};
  start(s, 3, both_enables(3), load_latency, bit(40));
  std::vector<bool> tagged;
  std::uint64_t before = s.pmc(3);
  for (unsigned k = 0; k < loads; ++k) {
    s.retire(slow_load(s, k));
    tagged.push_back(s.pmc(3) != before);
    before = s.pmc(3);
  }
  return tagged;
}

// Rule L11, option load_tag_interval: 1 (and 0) tags every load.
TEST(LoadTagging, IntervalOneTagsAll) {
  for (const std::uint32_t interval : {0U, 1U}) {
    const std::vector<bool> all = tags(interval, 1, 100);
    EXPECT_EQ(std::ranges::count(all, true), 100);
  }
}

TEST(LoadTagging, SameSeedSameLoadsOtherSeedOtherLoads) {
  EXPECT_EQ(tags(10, 7, 500), tags(10, 7, 500));
  EXPECT_NE(tags(10, 7, 500), tags(10, 8, 500));
}

TEST(LoadTagging, MeanIntervalIsTheOption) {
  for (const std::uint32_t interval : {2U, 10U, 100U})
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      constexpr unsigned loads = 200'000;
      const auto tagged = static_cast<double>(std::ranges::count(tags(interval, seed, loads), true));
      EXPECT_NEAR(tagged * interval / loads, 1.0, 0.05) << "interval " << interval << " seed " << seed;
    }
}

/// The loads of a loop that records describe: the loop has 5 loads, and the period is a multiple of 5.
std::set<std::uint64_t> sampled_of_a_loop(std::uint32_t interval) {
  constexpr unsigned loads = 5, period = 4;  // the load that triggers makes it 5
  S s{PmuConfig{.seed = 11, .policies = {.load_tag_interval = interval}}};
  start(s, 3, both_enables(3), load_latency, period);
  std::set<std::uint64_t> of;
  for (unsigned n = 0; s.records() < 30 && n < 10'000; ++n) s.retire(slow_load(s, n % loads));
  EXPECT_EQ(s.records(), 30U);
  for (unsigned i = 0; i < 30; ++i) of.insert(s.eventing_ip(i));
  return of;
}

// Rule L11: if every load is tagged, a period can hit the same load of a loop each time; random tags prevent that.
TEST(LoadTagging, RandomTagsMeetEveryLoadOfALoop) {
  EXPECT_EQ(sampled_of_a_loop(1).size(), 1U);
  EXPECT_EQ(sampled_of_a_loop(2).size(), 5U);
}

// Rules L4, L5: tags belong to the facility; an instruction without a load takes none.
TEST(LoadTagging, OnlyLoadsAdvanceIt) {
  S with_gaps{PmuConfig{.seed = 3, .policies = {.load_tag_interval = 5}}};
  start(with_gaps, 3, both_enables(3), load_latency, bit(40));
  std::vector<bool> tagged;
  for (unsigned k = 0; k < 200; ++k) {
    with_gaps.retire(with_gaps.plain(k));
    const std::uint64_t before = with_gaps.pmc(3);
    with_gaps.retire(slow_load(with_gaps, k));
    tagged.push_back(with_gaps.pmc(3) != before);
  }
  EXPECT_EQ(tagged, tags(5, 3, 200));
}

// Rule L6. SDM 3B 18.8.1.2: "the last update of latency and data source information are captured by the assist",
// whichever counter's it is; tagged loads update them whether or not they are over the threshold.
TEST(LoadLatency, RecordOfAnotherCounterHasTheLastTaggedLoad) {
  S s;
  start(s, 3, both_enables(3));
  s.start_pebs(0, instructions, 3);
  Retirement slow = slow_load(s, 1, 200);
  slow.load.level = HitLevel::l2;
  s.retire(slow);
  Retirement fast = slow_load(s, 2, 10);
  fast.load.stlb_miss = true;
  s.retire(fast);
  s.retire(s.plain(3));
  EXPECT_EQ(s.pmu.plan().entries[1].latency_over, 30U);
  EXPECT_TRUE(s.pmu.plan().last_load_wanted);
  s.retire(s.store(4));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(2).value());
  EXPECT_EQ(s.record(0)[Slot::data_source], 0x11U);
  EXPECT_EQ(s.record(0)[Slot::latency], 10U);
}

// Rule P23: without the facility nothing applies to such a record, and bulk counting goes on where every record has its
// own fields.
TEST(LoadLatency, OtherRecordsHaveNothingWithoutIt) {
  S s;
  start(s, 3, both_enables(3));
  s.start_pebs(0, instructions, 3);
  s.run(1, 1);
  s.write(msr::IA32_PEBS_ENABLE, 1);
  s.run(2, 4);
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::data_address] | s.record(0)[Slot::latency], 0U);
  S with_stores;
  start(with_stores, 3, both_enables(3));
  with_stores.start_pebs(0, stores, 3);
  EXPECT_EQ(with_stores.pmu.plan().entries[1].latency_over, 30U);
}

// Rule L6. A source that lets loads pass in bulk tells the last of them.
TEST(LoadLatency, RecordOfAnotherCounterHasTheLastLoadOfABulk) {
  S s;
  start(s, 3, both_enables(3));
  s.start_pebs(0, instructions, 3);
  s.retire(slow_load(s, 1, 200));
  CountDeltas deltas;
  deltas[CounterId::gp(0)] = 1;
  deltas.last_load = slow_load(s, 2, 14).load;
  deltas.last_load->level = HitLevel::l2;
  deltas.last_load->locked = true;
  s.pmu.settle(deltas, s.env);
  for (unsigned k = 3; k <= 4; ++k) s.retire(s.plain(k));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::data_address], S::data_of(2).value());
  EXPECT_EQ(s.record(0)[Slot::data_source], 0x23U) << "the L2, locked";
  EXPECT_EQ(s.record(0)[Slot::latency], 14U);
}

// The facility's last load is part of the state.
TEST(LoadLatency, LastTaggedLoadIsSavedAndRestored) {
  S a, b;
  start(a, 3, both_enables(3));
  a.start_pebs(0, instructions, 3);
  a.retire(slow_load(a, 1, 77));
  ASSERT_EQ(b.pmu.restore(a.pmu.snapshot()), RestoreStatus::ok);
  b.set_reset(0, minus(3));
  for (unsigned k = 2; k <= 4; ++k) b.retire(b.plain(k));
  ASSERT_EQ(b.records(), 1U);
  EXPECT_EQ(b.record(0)[Slot::data_address], S::data_of(1).value());
  EXPECT_EQ(b.record(0)[Slot::latency], 77U);
}

}  // namespace
}  // namespace vpmu::test
