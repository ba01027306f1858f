#include <gtest/gtest.h>

#include <algorithm>

#include "pebs_session.hpp"

// The guest's DS area is hostile input: rules F1 to F14.

namespace vpmu::test {
namespace {

using S = PebsSession;
using Kind = Access::Kind;

/// Overflows PMC0 and triggers its assist, with the guest's memory arranged before it.
void trigger(S& s, void (*arrange)(S&) = nullptr) {
  s.start_pebs(0, loads, 1);
  if (arrange != nullptr) arrange(s);
  s.env.log.clear();
  s.run(1, 2);
}

std::vector<Access> accesses(const S& s, std::initializer_list<Kind> kinds) {
  std::vector<Access> found;
  std::ranges::copy_if(s.env.log, std::back_inserter(found),
                       [&](const Access& a) { return std::ranges::find(kinds, a.kind) != kinds.end(); });
  return found;
}
std::vector<Access> writes(const S& s) { return accesses(s, {Kind::write}); }

/// What every dropped record has in common: rule F4. In a full buffer the status says so, too (rule F2).
void expect_dropped(const S& s) {
  EXPECT_TRUE(writes(s).empty());
  EXPECT_EQ(s.statistics().records_written, 0U);
  EXPECT_EQ(s.status(), s.statistics().records_dropped_full != 0 ? 1U | ovf_buffer : 1U) << "not cleared";
  EXPECT_EQ(s.pmc(0), 1U) << "not reloaded";
  EXPECT_EQ(s.env.pmis, 0U);
  EXPECT_FALSE(s.pmu.plan().any_armed()) << "disarmed";
}

// Rules P5, F10: threshold first, all probes before the first write, record before index, PMI last.
TEST(DsArea, AccessesComeInTheOrderOfTheAssist) {
  S s;
  s.set_threshold(S::buffer);
  trigger(s);
  const std::vector<Access> expected{
      {Kind::probe_read, S::ds_area + 0x38, 8},
      {Kind::read, S::ds_area + 0x20, 0x40},
      {Kind::probe_write, S::buffer, S::size},
      {Kind::probe_write, S::ds_area + 0x28, 8},
      {Kind::tsc, {}, 0},
      {Kind::write, S::buffer, S::size},
      {Kind::write, S::ds_area + 0x28, 8},
      {Kind::pmi, {}, 0},
  };
  EXPECT_EQ(s.env.log, expected);
}

// Rules F1, F2, F6: the whole record has to fit below the absolute maximum.
TEST(DsArea, RecordThatWouldPassTheMaximumIsDroppedWhole) {
  for (const std::uint64_t room : {0U, 1U, 199U}) {
    S s;
    s.set_ds({.absolute_maximum = S::buffer + room});
    trigger(s);
    expect_dropped(s);
    EXPECT_EQ(s.statistics().records_dropped_full, 1U) << room;
  }
  S s;
  s.set_ds({.absolute_maximum = S::buffer + 200});
  trigger(s);
  EXPECT_EQ(s.records(), 1U);
}

// Rule F2. SDM 3B 18.9.1: from Sandy Bridge on the bit is set when the buffer fills up, and again at each record that
// finds it full. 18.8.1.1: before that nothing is signalled. Never an interrupt.
TEST(DsArea, FullBufferIsSignalledFromSandyBridgeOn) {
  unsigned silent = 0;
  for (const GenerationDesc* const g : all_generations()) {
    const bool signals = g->generation >= Generation::sandy_bridge;
    silent += signals ? 0 : 1;
    S s{PmuConfig{.generation = g->generation}};
    s.set_ds({.absolute_maximum = S::buffer + 2 * s.record_bytes()});
    s.start_pebs(0, instructions, 1);
    s.run(1, 2);
    EXPECT_EQ(s.status() & ovf_buffer, 0U) << g->name << ": there is room for one more";
    s.run(3, 4);
    EXPECT_EQ(s.records(), 2U) << g->name;
    EXPECT_EQ(s.status() & ovf_buffer, signals ? ovf_buffer : 0U) << g->name;
    s.write(msr::IA32_PERF_GLOBAL_OVF_CTRL, ovf_buffer);
    s.run(5, 6);
    EXPECT_EQ(s.statistics().records_dropped_full, 1U) << g->name;
    EXPECT_EQ(s.status() & ovf_buffer, signals ? ovf_buffer : 0U) << g->name;
    EXPECT_EQ(s.env.pmis, 0U) << g->name;
  }
  EXPECT_EQ(silent, 5U) << "Nehalem and Westmere";
}

// A record that its area's bounds exclude is no sign of a full buffer.
TEST(DsArea, BadBoundsSignalNothing) {
  S s;
  s.set_ds({.absolute_maximum = S::buffer + page_size});
  s.set_index(S::buffer + 2 * page_size);
  trigger(s);
  EXPECT_EQ(s.statistics().records_dropped_bounds, 1U);
  EXPECT_EQ(s.status(), 1U);
}

// Rule F4: the counter overflows again when software reloads it, and then records again.
TEST(DsArea, DroppedCounterRecordsAgainOnceSoftwareMakesRoom) {
  S s;
  s.set_ds({.absolute_maximum = S::buffer});
  trigger(s);
  s.set_ds({.absolute_maximum = S::buffer + page_size});
  s.run(3, 5);
  EXPECT_EQ(s.records(), 0U);
  s.write(msr::IA32_A_PMC0, minus(1));
  s.run(6, 7);
  EXPECT_EQ(s.records(), 1U);
}

// Rules F1, F7, F8: nonsense in the management area.
TEST(DsArea, NonsenseBoundsDropTheRecord) {
  struct Row {
    const char* what;
    std::uint64_t base, index, maximum;
  };
  constexpr std::uint64_t b = S::buffer.value();
  for (const Row& row :
       {Row{"index below base", b + 64, b, b + 4096}, Row{"index past the maximum", b, b + 4097, b + 4096},
        Row{"base past the maximum", b + 8192, b + 8192, b + 4096}, Row{"index wraps", b, ~0ULL - 100, ~0ULL},
        Row{"not canonical", 0x0000'8000'0000'0000, 0x0000'8000'0000'0000, 0x0000'8000'0000'1000},
        Row{"into the non-canonical hole", 0x7FFF'FFFF'0000, 0x7FFF'FFFF'FFFF - 100, 0x0000'8000'0000'1000},
        Row{"out of the non-canonical hole", 0x1000, 0xFFFF'8000'0000'0000 - 100, ~0ULL}}) {
    S s;
    s.env.map(GuestLinear{0x7FFF'FFFF'F000}, page_size);
    s.set_ds(
        {.base = GuestLinear{row.base}, .index = GuestLinear{row.index}, .absolute_maximum = GuestLinear{row.maximum}});
    trigger(s);
    expect_dropped(s);
    EXPECT_EQ(s.statistics().records_dropped_bounds, 1U) << row.what;
  }
}

// Rule F7: misaligned but in bounds is written there.
TEST(DsArea, MisalignedIndexIsWrittenWhereItPoints) {
  S s;
  s.set_ds({.index = S::buffer + 3, .absolute_maximum = S::buffer + page_size});
  trigger(s);
  ASSERT_EQ(writes(s).size(), 2U);
  EXPECT_EQ(writes(s)[0].at, S::buffer + 3);
  EXPECT_EQ(s.index(), S::buffer + (3 + S::size));
  EXPECT_EQ(s.env.peek(S::buffer + (3 + 0xB0)), S::a(2).value());
}

// Rule F5: at or past the threshold, on a record boundary or off it.
TEST(DsArea, ThresholdIsComparedAfterTheIndexHasMoved) {
  struct Row {
    std::uint64_t offset;
    bool reached;
  };
  for (const Row& row :
       {Row{0, true}, Row{1, true}, Row{199, true}, Row{200, true}, Row{201, false}, Row{400, false}}) {
    S s;
    s.set_threshold(S::buffer + row.offset);
    trigger(s);
    EXPECT_EQ(s.records(), 1U);
    EXPECT_EQ(s.env.pmis, row.reached ? 1U : 0U) << row.offset;
    EXPECT_EQ(s.status(), row.reached ? ovf_buffer : 0U) << row.offset;
  }
}

// Rule F9: an address that nothing maps is accepted by WRMSR and fails at the assist.
TEST(DsArea, UnmappedAreaFailsAtTheAssist) {
  for (const std::uint64_t at : {std::uint64_t{0}, 0xFFFF'8000'00F0'0000}) {
    S s;
    s.write(msr::IA32_DS_AREA, at);
    trigger(s);
    expect_dropped(s);
    EXPECT_EQ(s.statistics().records_dropped_fault, 1U);
  }
}

// Rule F8: an area across the end of an address half has no bytes to read.
TEST(DsArea, AreaAcrossTheEndOfCanonicalSpaceIsDropped) {
  for (const std::uint64_t at : {0x7FFF'FFFF'FFD0U, 0xFFFF'FFFF'FFFF'FFC0U}) {
    S s;
    s.env.map(GuestLinear{at}, 8);
    s.env.map(GuestLinear{0}, page_size);
    s.write(msr::IA32_DS_AREA, at);
    trigger(s);
    expect_dropped(s);
    EXPECT_EQ(s.statistics().records_dropped_bounds, 1U);
  }
}

struct FaultRow {
  const char* what;
  void (*arrange)(S&);
};

const FaultRow fault_rows[] = {
    {"management area unmapped", [](S& s) { s.env.unmap(S::ds_area); }},
    {"management area read only", [](S& s) { s.env.map(S::ds_area, 1, Mapping::read_only); }},
    {"management area on no RAM", [](S& s) { s.env.map(S::ds_area, 1, Mapping::hole); }},
    {"buffer unmapped", [](S& s) { s.env.unmap(S::buffer); }},
    {"buffer read only", [](S& s) { s.env.map(S::buffer, 1, Mapping::read_only); }},
    {"buffer on no RAM", [](S& s) { s.env.map(S::buffer, 1, Mapping::hole); }},
    {"second page of the record unmapped",
     [](S& s) {
       s.set_ds({.index = S::buffer + (page_size - 8), .absolute_maximum = S::buffer + 2 * page_size});
       s.env.unmap(S::buffer + page_size);
     }},
};

// Rules F10, F12: a fault drops the record whole, and it is counted.
TEST(DsArea, PageFaultDropsTheRecordWithoutATrace) {
  for (const FaultRow& row : fault_rows) {
    SCOPED_TRACE(row.what);
    S s;
    trigger(s, row.arrange);
    expect_dropped(s);
    EXPECT_EQ(s.statistics().records_dropped_fault, 1U);
  }
}

// Rule F13.
TEST(DsArea, RecordMayCrossAPage) {
  S s;
  s.set_ds({.index = S::buffer + (page_size - 0x58), .absolute_maximum = S::buffer + 2 * page_size});
  trigger(s);
  EXPECT_EQ(s.statistics().records_written, 1U);
  EXPECT_EQ(s.env.peek(S::buffer + (page_size - 0x58 + 0xB0)), S::a(2).value());
}

class DropTrace final : public TraceSink {
 public:
  void on(const TraceEvent& event) override {
    if (const auto* d = std::get_if<RecordDropped>(&event)) dropped.push_back(*d);
    if (const auto* w = std::get_if<RecordWritten>(&event)) written.push_back(*w->record);
  }
  std::vector<RecordDropped> dropped;
  std::vector<PebsRecord> written;
};

TEST(DsArea, DroppedAndWrittenRecordsAreTraced) {
  DropTrace trace;
  S s{PmuConfig{.trace = &trace}};
  s.set_ds({.absolute_maximum = S::buffer + S::size});
  s.start_pebs(0, loads, 1);
  s.run(1, 4);
  ASSERT_EQ(trace.written.size(), 1U);
  EXPECT_EQ(trace.written[0], s.record(0));
  ASSERT_EQ(trace.dropped.size(), 1U);
  EXPECT_EQ(trace.dropped[0].reason, DropReason::buffer_full);
  EXPECT_TRUE(trace.dropped[0].counters.has(CounterId::gp(0)));
}

}  // namespace
}  // namespace vpmu::test
