#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Options skid_events and macro_fusion. That of load_tag_interval is in load_latency_test.cpp.

namespace vpmu::test {
namespace {

using S = PebsSession;

// Rule P2: the defaults are the documented choices.
TEST(Policies, DefaultsAreTheDocumentedOnes) {
  const PmuPolicies p;
  EXPECT_EQ(p.skid_events, 0U);
  EXPECT_FALSE(p.macro_fusion);
  EXPECT_EQ(p.load_tag_interval, 1U);
}

// Rule P2, option skid_events: each time, this many events pass between overflow and arming.
TEST(Skid, DelaysEachTriggerByItsEvents) {
  for (const std::uint32_t skid : {0U, 1U, 4U}) {
    S s{PmuPolicies{.skid_events = skid}};
    s.start_pebs(0, loads, 2);
    s.run(1, 2 * (3 + skid));
    ASSERT_EQ(s.records(), 2U) << skid;
    EXPECT_EQ(s.eventing_ip(0), S::a(3 + skid).value());
    EXPECT_EQ(s.eventing_ip(1), S::a(2 * (3 + skid)).value());
  }
}

TEST(Skid, CountsEventsAndNotInstructions) {
  S s{PmuPolicies{.skid_events = 2}};
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  for (unsigned k = 2; k <= 6; ++k) s.retire(s.plain(k));
  s.run(7, 8);
  EXPECT_EQ(s.records(), 0U);
  s.run(9, 9);
  EXPECT_EQ(s.records(), 1U);
}

// For the forms in which any retirement triggers (rule P18), each retirement is one event of the skid.
TEST(Skid, OfAnInvertedMaskFormCountsRetirements) {
  S s{PmuPolicies{.skid_events = 2}};
  s.start_pebs(0, cycles_p, 1);
  s.run(1, 1);
  ASSERT_EQ(s.status(), 1U);
  s.run(2, 3);
  EXPECT_EQ(s.records(), 0U);
  s.run(4, 4);
  EXPECT_EQ(s.records(), 1U);
}

// Rule D2: precise distribution has no skid.
TEST(Skid, DoesNotDelayPreciseDistribution) {
  S s{PmuPolicies{.skid_events = 5}};
  s.start_pebs(1, precise_distribution, 3);
  s.run(1, 3);
  EXPECT_EQ(s.records(), 1U);
}

// Events that a source delivers in bulk use up the skid as well; what goes beyond it is late.
TEST(Skid, IsUsedUpByEventsDeliveredInBulk) {
  S s{PmuPolicies{.skid_events = 10}};
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  CountDeltas deltas;
  deltas[CounterId::gp(0)] = 8;
  s.pmu.settle(deltas, s.env);
  EXPECT_EQ(s.statistics().late_triggers, 0U);
  s.run(2, 3);
  EXPECT_EQ(s.records(), 0U);
  s.run(4, 4);
  EXPECT_EQ(s.records(), 1U);
}

Retirement fused_compare(S& s, unsigned k) {
  Retirement r = s.load(k);
  r.macro_fused = true;
  return r;
}
Retirement fused_jump(S& s, unsigned k) {
  Retirement r = s.plain(k);
  r.next_ip = GuestLinear{0x40'0000};
  r.branch = {.kind = BranchKind::conditional, .taken = true};
  return r;
}

// Rule P2a: without the option the compare is an instruction of its own.
TEST(MacroFusion, IsOffByDefault) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 1);
  s.retire(fused_compare(s, 2));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::rip], S::a(3).value());
}

/// Between the halves of a fused pair, of which the first one has triggered a record.
struct BetweenTheHalves : S {
  BetweenTheHalves() : S{PmuPolicies{.macro_fusion = true}} {
    start_pebs(0, loads, 1);
    run(1, 1);
    retire(compare);
  }
  Retirement compare = fused_compare(*this, 2);
};

// Rule P2a, option macro_fusion: the pair retires as one. RIP is behind its branch, the rest is the compare's.
TEST(MacroFusion, ARecordOfACompareIsWrittenBehindItsBranch) {
  BetweenTheHalves s;
  EXPECT_EQ(s.records(), 0U);
  s.retire(fused_jump(s, 3));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::rip], 0x40'0000U);
  EXPECT_EQ(s.record(0)[Slot::eventing_ip], s.compare.ip.value());
  EXPECT_EQ(s.record(0)[Slot::data_address], s.compare.load.address.value());
  EXPECT_NE(s.record(0)[Slot::data_address], 0U);
  EXPECT_EQ(s.pmc(0), minus(1));
  EXPECT_EQ(s.status(), 0U);
}

// Rule P2a; load latency.
TEST(MacroFusion, KeepsTheLatencyAndTheSourceOfTheCompare) {
  S s{PmuPolicies{.macro_fusion = true}};
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  s.start(3, load_latency, 1);
  s.write(msr::IA32_PEBS_ENABLE, bit(3) | bit(35));
  Retirement first = s.load(1);
  first.load.latency = 10;
  s.retire(first);
  Retirement compare = fused_compare(s, 2);
  compare.load.latency = 30;
  compare.load.level = HitLevel::l3;
  s.retire(compare);
  s.retire(fused_jump(s, 3));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::latency], 30U);
  EXPECT_NE(s.record(0)[Slot::data_source], 0U);
  EXPECT_EQ(s.record(0)[Slot::data_address], compare.load.address.value());
}

TEST(MacroFusion, ACompareThatIsInterruptedRetiresByItself) {
  BetweenTheHalves s;
  s.retire(s.plain(100));
  ASSERT_EQ(s.records(), 1U);
  EXPECT_EQ(s.record(0)[Slot::rip], s.compare.next_ip.value());
  EXPECT_EQ(s.record(0)[Slot::eventing_ip], s.compare.ip.value());
}

TEST(MacroFusion, IsSavedBetweenTheHalves) {
  BetweenTheHalves s;
  S other{PmuPolicies{.macro_fusion = true}};
  ASSERT_EQ(other.pmu.restore(s.pmu.snapshot()), RestoreStatus::ok);
  other.retire(fused_jump(other, 3));
  ASSERT_EQ(other.records(), 1U);
  EXPECT_EQ(other.record(0)[Slot::eventing_ip], s.compare.ip.value());
}

TEST(MacroFusion, ReprogrammingBetweenTheHalvesDropsTheTrigger) {
  BetweenTheHalves s;
  s.write(msr::IA32_PEBS_ENABLE, 0);
  s.retire(fused_jump(s, 3));
  EXPECT_EQ(s.records(), 0U);
  s.write(msr::IA32_PEBS_ENABLE, 1);
  s.run(4, 4);
  EXPECT_EQ(s.records(), 1U) << "it is armed still (P20)";
}

}  // namespace
}  // namespace vpmu::test
