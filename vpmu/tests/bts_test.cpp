#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "bts_area.hpp"
#include "generation_name.hpp"
#include "recording_env.hpp"
#include "select.hpp"
#include "vpmu/bts.hpp"
#include "vpmu/pmu.hpp"

// Branch trace store: rules B1 to B6, F15, on every generation. SDM 3B 17.4.5, 17.4.9.

namespace vpmu::test {
namespace {

constexpr GuestLinear pebs_buffer{0xFFFF'8000'0004'0000};
constexpr std::uint64_t never = ~0ULL;

class Bts : public ::testing::TestWithParam<const GenerationDesc*> {
 protected:
  RecordingEnv env;
  Pmu pmu{PmuConfig{.generation = GetParam()->generation}};

  void SetUp() override {
    env.map(ds_area, page_size);
    env.map(buffer, 2 * page_size);
    env.map(pebs_buffer, page_size);
    write(msr::IA32_DS_AREA, ds_area.value());
    set_buffer(8, 9);
  }
  void write(MsrIndex index, std::uint64_t value) {
    ASSERT_EQ(pmu.wrmsr(index, value), MsrStatus::ok) << "MSR " << std::hex << index.value() << " = " << value;
  }
  [[nodiscard]] std::uint64_t read(MsrIndex index) const { return pmu.rdmsr(index).value; }
  void set_area(std::uint64_t base, std::uint64_t index, std::uint64_t maximum, std::uint64_t threshold) {
    env.poke(ds_area, base);
    env.poke(ds_area + 0x08, index);
    env.poke(ds_area + 0x10, maximum);
    env.poke(ds_area + 0x18, threshold);
  }
  void set_buffer(unsigned records, unsigned threshold) {
    const std::uint64_t base = buffer.value();
    set_area(base, base, base + records * BtsRecord::size, base + threshold * BtsRecord::size);
  }
  void set_index(GuestLinear at) { env.poke(ds_area + 8, at.value()); }
  [[nodiscard]] GuestLinear index() const { return GuestLinear{env.peek(ds_area + 8)}; }
  [[nodiscard]] std::uint64_t records() const { return (index().value() - buffer.value()) / BtsRecord::size; }
  [[nodiscard]] BtsRecord record(std::uint64_t n) const { return record_at(buffer + n * BtsRecord::size); }
  [[nodiscard]] BtsRecord record_at(GuestLinear at) const {
    return {env.peek(at), env.peek(at + 8), env.peek(at + 16)};
  }

  static GuestLinear from(unsigned k) { return GuestLinear{0x1000 + 16ULL * k}; }
  static GuestLinear to(unsigned k) { return GuestLinear{0x9000 + 16ULL * k}; }
  static Retirement branch(unsigned k, BranchOutcome b = {.kind = BranchKind::near_rel_jmp, .taken = true}) {
    return {.ip = from(k), .next_ip = to(k), .branch = b, .cycles = 1};
  }
  void jump(unsigned k) { pmu.retire(branch(k), env); }
  void deliver(unsigned k, std::uint8_t cpl = 0) {
    pmu.record_branch({.from = from(k), .to = to(k), .cpl = cpl, .what = {.kind = BranchKind::far, .taken = true}},
                      env);
  }
  void expect_dropped(std::uint64_t full, std::uint64_t bounds, std::uint64_t fault) const {
    EXPECT_EQ(pmu.statistics().branches_dropped_full, full);
    EXPECT_EQ(pmu.statistics().branches_dropped_bounds, bounds);
    EXPECT_EQ(pmu.statistics().branches_dropped_fault, fault);
  }
  [[nodiscard]] std::uint64_t dropped() const {
    const PmuStatistics& s = pmu.statistics();
    return s.branches_dropped_full + s.branches_dropped_bounds + s.branches_dropped_fault;
  }
  [[nodiscard]] std::vector<Access> writes() const {
    std::vector<Access> out;
    for (const Access& a : env.log)
      if (a.kind == Access::Kind::write) out.push_back(a);
    return out;
  }
};

// Rules B1, B5.
TEST_P(Bts, TakenBranchIsARecordOfFromToAndFlags) {
  write(msr::IA32_DEBUGCTL, trace_on);
  jump(1);
  pmu.retire(branch(2, {.kind = BranchKind::conditional, .taken = true, .mispredicted = true}), env);
  pmu.retire(branch(3, {.kind = BranchKind::far, .taken = true}), env);
  EXPECT_EQ(records(), 3U);
  EXPECT_EQ(record(0), (BtsRecord{from(1).value(), to(1).value(), 0x10}));
  EXPECT_EQ(record(1), (BtsRecord{from(2).value(), to(2).value(), 0}));
  EXPECT_EQ(record(2), (BtsRecord{from(3).value(), to(3).value(), 0}));
  EXPECT_EQ(pmu.statistics().branches_stored, 3U);
  EXPECT_EQ(env.pmis, 0U);
}

TEST_P(Bts, InterruptsAndExceptionsAreRecordsToo) {
  write(msr::IA32_DEBUGCTL, trace_on);
  deliver(4);
  EXPECT_EQ(records(), 1U);
  EXPECT_EQ(record(0), (BtsRecord{from(4).value(), to(4).value(), 0}));
}

TEST_P(Bts, BranchNotTakenAndOtherInstructionsLeaveNoRecord) {
  write(msr::IA32_DEBUGCTL, trace_on);
  pmu.retire(branch(1, {.kind = BranchKind::conditional}), env);
  pmu.retire({.ip = from(1), .next_ip = from(2), .cycles = 1}, env);
  EXPECT_EQ(records(), 0U);
  EXPECT_TRUE(env.log.empty());
}

// Rule B1: neither bit alone, and no access to the guest's memory then.
TEST_P(Bts, NeedsBothBits) {
  for (const std::uint64_t control : std::array<std::uint64_t, 5>{0, dbg::TR::mask, dbg::BTS::mask,
                                                                  dbg::TR::mask | dbg::BTINT::mask, dbg::LBR::mask}) {
    write(msr::IA32_DEBUGCTL, control);
    EXPECT_EQ(pmu.plan().branches_wanted, control == dbg::LBR::mask);
    jump(1);
    deliver(2);
    EXPECT_TRUE(env.log.empty()) << control;
  }
  write(msr::IA32_DEBUGCTL, trace_on);
  EXPECT_TRUE(pmu.take_replan());
  EXPECT_TRUE(pmu.plan().branches_wanted);
  jump(3);
  EXPECT_EQ(records(), 1U);
}

// Rule B4: the level that the branch is taken at, not the one that it leads to.
TEST_P(Bts, LevelFiltersLookAtTheSource) {
  for (const unsigned off : {0U, 1U, 2U, 3U})
    for (const std::uint8_t cpl : std::initializer_list<std::uint8_t>{0, 1, 3}) {
      write(msr::IA32_DEBUGCTL, trace_on | (off << dbg::BTS_OFF_OS::low));
      EXPECT_EQ(pmu.plan().branches_wanted, off != 3);
      set_index(buffer);
      Retirement r =
          branch(1, {.kind = BranchKind::far, .taken = true, .target_cpl = static_cast<std::uint8_t>(3 - cpl)});
      r.cpl = cpl;
      pmu.retire(r, env);
      deliver(2, cpl);
      const bool wanted = cpl == 0 ? (off & 1) == 0 : (off & 2) == 0;
      EXPECT_EQ(records(), wanted ? 2U : 0U) << "off " << off << " cpl " << unsigned{cpl};
    }
}

// Rule B2: at or past the threshold, and again with each record.
TEST_P(Bts, ThresholdAsksForAnInterrupt) {
  write(msr::IA32_DEBUGCTL, trace_with_interrupt);
  set_buffer(8, 2);
  jump(1);
  EXPECT_EQ(env.pmis, 0U);
  jump(2);
  EXPECT_EQ(env.pmis, 1U);
  deliver(3);
  EXPECT_EQ(env.pmis, 2U);
  EXPECT_EQ(records(), 3U);
  EXPECT_EQ(pmu.statistics().pmi_requests, 2U);
  EXPECT_EQ(read(msr::IA32_PERF_GLOBAL_STATUS), 0U) << "OVF_DSBuffer is of PEBS";
}

// SDM 3B 17.4.9: the absolute maximum may be one byte past the last record.
TEST_P(Bts, FullBufferDropsSilentlyAndCounts) {
  write(msr::IA32_DEBUGCTL, trace_with_interrupt);
  for (const std::uint64_t extra : {0U, 1U}) {
    set_area(buffer.value(), buffer.value(), buffer.value() + 2 * BtsRecord::size + extra, never);
    for (unsigned k = 1; k <= 3; ++k) jump(k);
    EXPECT_EQ(records(), 2U);
    EXPECT_EQ(record(1).from, from(2).value());
    EXPECT_EQ(record(2), BtsRecord{});
    EXPECT_EQ(env.pmis, 0U);
    expect_dropped(1 + extra, 0, 0);
  }
}

// Rule B3.
TEST_P(Bts, WithoutInterruptTheBufferIsCircular) {
  write(msr::IA32_DEBUGCTL, trace_on);
  for (const std::uint64_t extra : {0U, 1U, 23U}) {
    set_area(buffer.value(), buffer.value(), buffer.value() + 3 * BtsRecord::size + extra, buffer.value());
    for (unsigned k = 1; k <= 3; ++k) jump(k);
    EXPECT_EQ(index(), buffer);
    jump(4);
    EXPECT_EQ(records(), 1U);
    EXPECT_EQ(record(0).from, from(4).value());
    EXPECT_EQ(record(1).from, from(2).value());
    EXPECT_EQ(record(2).from, from(3).value());
    EXPECT_EQ(record(3), BtsRecord{});
  }
  EXPECT_EQ(env.pmis, 0U);
  expect_dropped(0, 0, 0);
}

TEST_P(Bts, CircularIndexAtTheEndWrapsBeforeTheRecord) {
  write(msr::IA32_DEBUGCTL, trace_on);
  set_buffer(3, 9);
  set_index(buffer + 3 * BtsRecord::size);
  jump(1);
  EXPECT_EQ(records(), 1U);
  EXPECT_EQ(record(0).from, from(1).value());
}

// Rule B6.
TEST_P(Bts, BadBoundsDropAndCount) {
  const std::uint64_t base = buffer.value();
  struct Case {
    std::uint64_t base, index, maximum;
  };
  const std::array cases{
      Case{base, base - 8, base + 240},                                           // index below the base
      Case{base, base + 241, base + 240},                                         // index after the maximum
      Case{base + 240, base, base},                                               // maximum below the base
      Case{0xFFFF'FFFF'FFFF'FF00, 0xFFFF'FFFF'FFFF'FFF0, 0xFFFF'FFFF'FFFF'FFFF},  // the record wraps
      Case{0x7FFF'FFFF'FFF0, 0x7FFF'FFFF'FFF0, 0x8000'0000'1000},        // the record leaves the canonical half
      Case{0x1'0000'0000'0000, 0x1'0000'0000'0000, 0x1'0000'0000'1000},  // not canonical
  };
  for (const std::uint64_t control : {trace_on, trace_with_interrupt}) {
    write(msr::IA32_DEBUGCTL, control);
    for (const Case& c : cases) {
      set_area(c.base, c.index, c.maximum, 0);
      const std::uint64_t before = dropped();
      jump(1);
      deliver(2);
      EXPECT_EQ(dropped(), before + 2) << std::hex << c.index;
      EXPECT_EQ(index().value(), c.index);
    }
  }
  EXPECT_TRUE(writes().empty());
  EXPECT_EQ(env.pmis, 0U);
  EXPECT_EQ(pmu.statistics().branches_stored, 0U);
}

// A circular buffer without room for one record has nowhere to wrap to.
TEST_P(Bts, CircularBufferBelowOneRecordDrops) {
  write(msr::IA32_DEBUGCTL, trace_on);
  set_area(buffer.value(), buffer.value(), buffer.value() + BtsRecord::size - 1, never);
  jump(1);
  EXPECT_EQ(dropped(), 1U);
  EXPECT_TRUE(writes().empty());
}

// Rule F13.
TEST_P(Bts, RecordMayStraddlePages) {
  write(msr::IA32_DEBUGCTL, trace_on);
  const std::uint64_t at = buffer.value() + page_size - 8;
  set_area(at, at, at + 2 * BtsRecord::size, never);
  jump(1);
  EXPECT_EQ(record_at(GuestLinear{at}), (BtsRecord{from(1).value(), to(1).value(), 0x10}));
  EXPECT_EQ(index().value(), at + BtsRecord::size);
}

// Rules B6, F10: whole or not at all.
TEST_P(Bts, UnmappedSecondPageDropsWholeAndCounts) {
  write(msr::IA32_DEBUGCTL, trace_with_interrupt);
  env.unmap(buffer + page_size);
  const std::uint64_t at = buffer.value() + page_size - 8;
  set_area(at, at, at + 2 * BtsRecord::size, 0);
  jump(1);
  deliver(2);
  expect_dropped(0, 0, 2);
  EXPECT_TRUE(writes().empty());
  EXPECT_EQ(env.pmis, 0U);
}

TEST_P(Bts, UnmappedReadOnlyOrMissingAreaDropsAndCounts) {
  write(msr::IA32_DEBUGCTL, trace_on);
  env.map(ds_area, page_size, Mapping::read_only);
  jump(1);
  env.map(ds_area, page_size, Mapping::hole);
  jump(2);
  env.unmap(ds_area);
  jump(3);
  expect_dropped(0, 0, 3);
  write(msr::IA32_DS_AREA, 0xFFFF'FFFF'FFFF'FFF0);  // the area wraps
  jump(4);
  expect_dropped(0, 1, 3);
  EXPECT_TRUE(writes().empty());
}

// Rule F15: PEBS record, BTS record, then one PMI for both thresholds.
TEST_P(Bts, PebsRecordThenBtsRecordThenOneInterrupt) {
  env.poke(ds_area + 0x20, pebs_buffer.value());
  env.poke(ds_area + 0x28, pebs_buffer.value());
  env.poke(ds_area + 0x30, pebs_buffer.value() + page_size);
  env.poke(ds_area + 0x38, pebs_buffer.value());
  set_buffer(8, 0);
  write(msr::IA32_PERF_GLOBAL_CTRL, 1);
  write(msr::IA32_PERFEVTSEL0, Select{.event = 0xC4, .umask = 0x04}.raw());
  write(msr::IA32_PMC0, 0xFFFF'FFFF);
  write(msr::IA32_PEBS_ENABLE, 1);
  jump(1);
  write(msr::IA32_DEBUGCTL, trace_with_interrupt);
  env.log.clear();
  jump(2);
  std::vector<GuestLinear> order;
  for (const Access& a : env.log)
    if (a.kind == Access::Kind::write || a.kind == Access::Kind::pmi) order.push_back(a.at);
  EXPECT_EQ(order, (std::vector{pebs_buffer, ds_area + 0x28, buffer, ds_area + 8, GuestLinear{}}));
  EXPECT_EQ(env.pmis, 1U);
  EXPECT_EQ(pmu.statistics().records_written, 1U);
}

// Rules Z1 to Z4: the threshold freezes as a counter's PMI does; BTS itself continues.
TEST_P(Bts, ThresholdFreezesCountersAndLbr) {
  write(msr::IA32_PERF_GLOBAL_CTRL, 1);
  write(msr::IA32_PERFEVTSEL0, Select{.event = 0xC0}.raw());
  write(msr::IA32_DEBUGCTL,
        trace_with_interrupt | dbg::LBR::mask | dbg::FREEZE_LBRS_ON_PMI::mask | dbg::FREEZE_PERFMON_ON_PMI::mask);
  set_buffer(8, 1);
  jump(1);
  jump(2);
  EXPECT_EQ(read(msr::IA32_PMC0), 1U);
  EXPECT_EQ(read(msr::MSR_LASTBRANCH_TOS), 1U);
  EXPECT_EQ(records(), 2U);
  const bool legacy = GetParam()->freeze == FreezeKind::legacy;
  EXPECT_EQ(read(msr::IA32_PERF_GLOBAL_CTRL), legacy ? 0U : 1U);
  EXPECT_EQ(dbg::LBR::test(read(msr::IA32_DEBUGCTL)), !legacy);
  EXPECT_EQ(read(msr::IA32_PERF_GLOBAL_STATUS),
            legacy ? 0U : reg::global_status::CTR_FRZ::mask | reg::global_status::LBR_FRZ::mask);
}

// Rule F14.
TEST_P(Bts, StandsStillAfterInit) {
  write(msr::IA32_DEBUGCTL, trace_on);
  jump(2);
  EXPECT_EQ(records(), 1U);
  pmu.init();
  jump(3);
  EXPECT_EQ(records(), 1U);
}

// SDM 3C table 35-2: IA32_MISC_ENABLE[11].
TEST_P(Bts, UnavailableBtsWritesNothing) {
  Pmu without{PmuConfig{.generation = GetParam()->generation, .misc_enable = reg::misc_enable::BTS_UNAVAILABLE::mask}};
  ASSERT_EQ(without.wrmsr(msr::IA32_DS_AREA, ds_area.value()), MsrStatus::ok);
  ASSERT_EQ(without.wrmsr(msr::IA32_DEBUGCTL, trace_on), MsrStatus::ok);
  EXPECT_FALSE(without.plan().branches_wanted);
  without.retire(branch(1), env);
  EXPECT_TRUE(env.log.empty());
}

class BtsTrace final : public TraceSink {
 public:
  void on(const TraceEvent& event) override {
    if (const auto* s = std::get_if<BranchStored>(&event)) stored.push_back(*s);
    if (const auto* d = std::get_if<BranchDropped>(&event)) dropped.push_back(*d);
  }
  std::vector<BranchStored> stored;
  std::vector<BranchDropped> dropped;
};

TEST_P(Bts, TraceTellsOfStoredAndDroppedRecords) {
  BtsTrace trace;
  Pmu traced{PmuConfig{.generation = GetParam()->generation, .trace = &trace}};
  ASSERT_EQ(traced.wrmsr(msr::IA32_DS_AREA, ds_area.value()), MsrStatus::ok);
  ASSERT_EQ(traced.wrmsr(msr::IA32_DEBUGCTL, trace_with_interrupt), MsrStatus::ok);
  set_buffer(1, 9);
  traced.retire(branch(1), env);
  traced.retire(branch(2), env);
  ASSERT_EQ(trace.stored.size(), 1U);
  EXPECT_EQ(trace.stored[0].at, buffer);
  EXPECT_EQ(trace.stored[0].record, record(0));
  ASSERT_EQ(trace.dropped.size(), 1U);
  EXPECT_EQ(trace.dropped[0].reason, DropReason::buffer_full);
}

INSTANTIATE_TEST_SUITE_P(OfEach, Bts, ::testing::ValuesIn(all_generations().begin(), all_generations().end()),
                         generation_name);

}  // namespace
}  // namespace vpmu::test
