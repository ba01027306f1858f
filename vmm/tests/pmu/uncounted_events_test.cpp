#include "pmu/uncounted_events.hpp"

#include <gtest/gtest.h>

#include <map>

// Of a counter that stays at 0 a guest cannot know whether nothing happened, or nobody counts.

namespace vmm::test {
namespace {

using Seen = std::map<std::string, std::uint64_t, std::less<>>;

Seen seen(const UncountedEvents& events) {
  Seen all;
  events.visit_statistics([&all](std::string_view name, std::uint64_t n) { all.emplace(name, n); });
  return all;
}

/// The plan of a guest that counts these: the code, and the umask above it.
vpmu::CountPlan plan_of(const std::vector<std::uint16_t>& selects) {
  vpmu::CountPlan plan;
  for (const std::uint16_t select : selects) {
    vpmu::PlanEntry& entry = plan.entries[plan.size];
    entry.counter = vpmu::CounterId::gp(plan.size++);
    entry.spec.code = static_cast<std::uint8_t>(select);
    entry.spec.umask = static_cast<std::uint8_t>(select >> 8U);
    entry.counts = classify(vpmu::describe(vpmu::Generation::skylake), entry.spec).counts;
  }
  return plan;
}

/// A guest that counts these, and reads their counters.
void count(
    UncountedEvents& events, const std::vector<std::uint16_t>& selects,
    const UncountedEvents::ReadMsr& read = [](vpmu::MsrIndex) { return std::uint64_t{0}; }) {
  events.look_at(plan_of(selects), read);
  for (unsigned i = 0; i < selects.size(); ++i) events.was_read(vpmu::CounterId::gp(i));
}

UncountedEvents events_of(std::string_view source, TimeModel time = TimeModel::instructions) {
  SourceOptions options;
  options.time = time;
  return {source, options, vpmu::describe(vpmu::Generation::skylake)};
}

constexpr std::uint16_t instructions = 0x00C0, undelivered_slots = 0x019C, interrupts = 0x01CB, demand_data = 0x01B7;

TEST(UncountedEvents, AreThoseThatTheSourceDoesNotDeliver) {
  UncountedEvents events = events_of("exact");
  count(events, {instructions, undelivered_slots});
  count(events, {undelivered_slots, interrupts});
  EXPECT_EQ(seen(events),
            (Seen{{"pmu.uncounted.hw_interrupts.received", 1}, {"pmu.uncounted.idq_uops_not_delivered.core", 2}}));
}

// Linux's way round Nehalem's erratum AAK100 enables 43'00B5H, 43'00D2H and 43'00B1H for a moment, and puts back what
// was there.
TEST(UncountedEvents, DoNotMatterUntilTheirCountersAreRead) {
  UncountedEvents events = events_of("exact");
  events.look_at(plan_of({interrupts, undelivered_slots}), [](vpmu::MsrIndex) { return std::uint64_t{0}; });
  EXPECT_EQ(seen(events), Seen{});
  // The counter that an event is given next is written, and may be read before it counts.
  events.was_written(vpmu::CounterId::gp(0));
  events.was_read(vpmu::CounterId::gp(0));
  EXPECT_EQ(seen(events), Seen{});
  events.was_read(vpmu::CounterId::gp(1));
  events.was_read(vpmu::CounterId::fixed(1));
  EXPECT_EQ(seen(events), (Seen{{"pmu.uncounted.idq_uops_not_delivered.core", 1}}));
}

TEST(UncountedEvents, AreFewerWithAModelOfThePipeline) {
  UncountedEvents events = events_of("exact", TimeModel::pipeline);
  count(events, {instructions, undelivered_slots});
  EXPECT_EQ(seen(events), Seen{});
}

TEST(UncountedEvents, HaveCodesWhereTheyHaveNoNames) {
  UncountedEvents events = events_of("exact");
  count(events, {0x77EE});
  EXPECT_EQ(seen(events), (Seen{{"pmu.uncounted.r77ee", 1}}));
}

// MSR_OFFCORE_RSP_0: a demand for data counts, a prefetch does not, for there are none. SDM 3B 18.13.4.
TEST(UncountedEvents, DependOnTheRequestsOfAnOffcoreEvent) {
  UncountedEvents events = events_of("exact");
  count(events, {demand_data}, [](vpmu::MsrIndex) { return std::uint64_t{0x10001}; });
  EXPECT_EQ(seen(events), Seen{});
  count(events, {demand_data}, [](vpmu::MsrIndex) { return std::uint64_t{0x10010}; });
  EXPECT_EQ(seen(events).size(), 1U);
}

TEST(UncountedEvents, AreNotKnownWhereTheHostDecides) {
  for (const char* source : {"perf", "kvm", "other"}) {
    UncountedEvents events = events_of(source);
    count(events, {undelivered_slots});
    EXPECT_EQ(seen(events), Seen{}) << source;
  }
  UncountedEvents none;
  count(none, {undelivered_slots});
  EXPECT_EQ(seen(none), Seen{});
}

TEST(UncountedEvents, AreNoMoreThanAReaderBears) {
  UncountedEvents events = events_of("exact");
  for (unsigned umask = 0; umask < 256; ++umask)
    for (unsigned code = 1; code < 256; ++code) count(events, {static_cast<std::uint16_t>(umask << 8U | code)});
  const Seen all = seen(events);
  EXPECT_EQ(all.size(), UncountedEvents::max_names + 1);
  EXPECT_GT(all.at("pmu.uncounted.others"), 1000U);
}

}  // namespace
}  // namespace vmm::test
