#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Option skid_events. That of load_tag_interval is in load_latency_test.cpp.

namespace vpmu::test {
namespace {

using S = PebsSession;

// Rule P2: the defaults are the documented choices.
TEST(Policies, DefaultsAreTheDocumentedOnes) {
  const PmuPolicies p;
  EXPECT_EQ(p.skid_events, 0U);
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

}  // namespace
}  // namespace vpmu::test
