#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>

#include "pebs_session.hpp"

namespace vpmu::test {
namespace {

using S = PebsSession;

bool same(const PmuSnapshot& a, const PmuSnapshot& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// A snapshot is 64-bit words in a fixed order: its size may change with its version only.
TEST(Snapshot, HasTheBytesOfItsVersion) {
  static_assert(std::is_trivially_copyable_v<PmuSnapshot> && std::has_unique_object_representations_v<PmuSnapshot>);
  EXPECT_EQ(PmuSnapshot::current_version, 6U);
  EXPECT_EQ(sizeof(PmuSnapshot), 8U * 162);
  const PmuSnapshot snapshot = Pmu{PmuConfig{}}.snapshot();
  EXPECT_EQ(std::memcmp(&snapshot, "SNAPVPMU", 8), 0);
}

// Saved while every state that the guest cannot read is in use: armed, overflowed, waiting interrupt, skid, open cycle,
// tag countdown.
TEST(Snapshot, RoundTripInTheMiddleOfAPebsSessionGoesOnAlike) {
  const PmuConfig config{.seed = 9, .policies = {.skid_events = 2, .load_tag_interval = 7}};
  S original{config};
  S copy{config};
  for (S* s : {&original, &copy}) s->set_threshold(S::buffer + 2 * S::size);
  original.write(msr::IA32_DEBUGCTL, 1);
  original.start_pebs(0, with_interrupt(loads), 3);
  original.start(1, {.event = 0xC2, .umask = 0x02, .cmask = 2, .edge = true}, 1000);
  original.start(3, load_latency, 40);
  original.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 3);
  original.write(msr::IA32_PEBS_ENABLE, 0x8'0000'0009);
  for (unsigned i = 0; i < 4; ++i) copy.set_reset(i, original.env.peek(S::ds_area + 0x40 + 8 * i));
  original.run(1, 4);
  ASSERT_TRUE(original.pmu.plan().any_armed());

  ASSERT_EQ(copy.pmu.restore(original.pmu.snapshot()), RestoreStatus::ok);
  EXPECT_TRUE(same(copy.pmu.snapshot(), original.pmu.snapshot()));
  EXPECT_TRUE(copy.pmu.take_replan());
  for (S* s : {&original, &copy}) s->run(5, 60);
  EXPECT_TRUE(same(copy.pmu.snapshot(), original.pmu.snapshot()));
  ASSERT_GT(original.records(), 3U);
  ASSERT_EQ(copy.records(), original.records());
  for (unsigned n = 0; n < original.records(); ++n) EXPECT_EQ(copy.record(n), original.record(n)) << n;
}

// Statistics count from the creation of a PMU or its last restore.
TEST(Snapshot, RestoreStartsNewStatistics) {
  S s;
  s.start_pebs(0, loads, 1);
  s.run(1, 2);
  EXPECT_EQ(s.statistics().records_written, 1U);
  ASSERT_EQ(s.pmu.restore(s.pmu.snapshot()), RestoreStatus::ok);
  EXPECT_EQ(s.statistics().records_written, 0U);
}

/// Restores `snapshot`, which must be refused and leave everything as it was.
void expect_refused(S& s, const PmuSnapshot& snapshot, RestoreStatus why) {
  (void)s.pmu.take_replan();
  const PmuSnapshot before = s.pmu.snapshot();
  EXPECT_EQ(s.pmu.restore(snapshot), why);
  EXPECT_TRUE(same(before, s.pmu.snapshot()));
  EXPECT_FALSE(s.pmu.take_replan());
}

TEST(SnapshotRefused, ForWrongMagicVersionGenerationOrCounters) {
  S s;
  s.start_pebs(0, loads, 1);
  PmuSnapshot bad = s.pmu.snapshot();
  bad.magic ^= 1;
  expect_refused(s, bad, RestoreStatus::wrong_magic);
  bad = s.pmu.snapshot();
  bad.version = PmuSnapshot::current_version - 1;
  expect_refused(s, bad, RestoreStatus::wrong_version);
  bad = s.pmu.snapshot();
  bad.generation = 77;
  expect_refused(s, bad, RestoreStatus::wrong_generation);
  expect_refused(s, Pmu{PmuConfig{.smt = false}}.snapshot(), RestoreStatus::wrong_generation);
}

TEST(SnapshotRefused, ForEveryValueThatNoGuestCouldHaveWritten) {
  struct Row {
    const char* what;
    void (*spoil)(PmuState&);
  };
  for (const Row& row : {
           Row{"counter wider than 48 bits", [](PmuState& p) { p.pmc[3] = bit(48); }},
           Row{"fixed counter wider than 48 bits", [](PmuState& p) { p.fixed_ctr[2] = bit(63); }},
           Row{"PERFEVTSEL", [](PmuState& p) { p.perfevtsel[1] = bit(32); }},
           Row{"FIXED_CTR_CTRL", [](PmuState& p) { p.fixed_ctr_ctrl = bit(12); }},
           Row{"GLOBAL_CTRL", [](PmuState& p) { p.global_ctrl = bit(4); }},
           Row{"GLOBAL_STATUS", [](PmuState& p) { p.global_status = bit(60); }},
           Row{"DEBUGCTL", [](PmuState& p) { p.debugctl = bit(2); }},
           Row{"MISC_ENABLE says no PEBS", [](PmuState& p) { p.misc_enable ^= bit(12); }},
           Row{"MISC_ENABLE says no perfmon", [](PmuState& p) { p.misc_enable ^= bit(7); }},
           Row{"PEBS_ENABLE", [](PmuState& p) { p.pebs_enable = bit(4); }},
           Row{"DS_AREA", [](PmuState& p) { p.ds_area = bit(47); }},
           Row{"PEBS_LD_LAT_THRESHOLD", [](PmuState& p) { p.pebs_ld_lat_threshold = bit(16); }},
           Row{"PEBS_FRONTEND", [](PmuState& p) { p.pebs_frontend = bit(3); }},
           Row{"OFFCORE_RSP", [](PmuState& p) { p.offcore_rsp[1] = bit(12); }},
           Row{"MISC_FEATURE_CONTROL", [](PmuState& p) { p.misc_feature_control = bit(4); }},
           Row{"LBR_SELECT", [](PmuState& p) { p.lbr_select = bit(10); }},
           Row{"LBR TOS", [](PmuState& p) { p.lbr_tos = 32; }},
           Row{"LBR FROM", [](PmuState& p) { p.lbr_from[31] = bit(62); }},
           Row{"LBR TO", [](PmuState& p) { p.lbr_to[0] = bit(50); }},
           Row{"armed PMC4", [](PmuState& p) { p.armed = bit(4); }},
           Row{"overflowed fixed counter", [](PmuState& p) { p.overflowed = bit(8); }},
           Row{"waiting PMI of PMC7", [](PmuState& p) { p.pmi_after_assist = bit(7); }},
           Row{"edge condition of no counter", [](PmuState& p) { p.condition = bit(20); }},
           Row{"counter that is not there", [](PmuState& p) { p.pmc[4] = 1; }},
           Row{"select that is not there", [](PmuState& p) { p.perfevtsel[7] = 1; }},
           Row{"tagging generator at rest", [](PmuState& p) { p.load_tag_random = 0; }},
       }) {
    SCOPED_TRACE(row.what);
    S s;
    s.start_pebs(0, loads, 1);
    s.run(1, 1);
    PmuSnapshot bad = s.pmu.snapshot();
    row.spoil(bad.state);
    expect_refused(s, bad, RestoreStatus::illegal_value);
  }
}

// Also on generations without a full-width register: before Sandy Bridge IA32_PMCi is the only address of a counter.
TEST(SnapshotRefused, ForACounterThatIsTooWideOnEachGeneration) {
  for (const GenerationDesc* const g : all_generations()) {
    Pmu pmu{PmuConfig{.generation = g->generation}};
    PmuSnapshot snapshot = pmu.snapshot();
    snapshot.state.pmc[0] = low_bits(48);
    EXPECT_EQ(pmu.restore(snapshot), RestoreStatus::ok) << g->name;
    snapshot.state.pmc[0] = bit(48);
    EXPECT_EQ(pmu.restore(snapshot), RestoreStatus::illegal_value) << g->name;
  }
}

}  // namespace
}  // namespace vpmu::test
