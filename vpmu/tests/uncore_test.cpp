#include "vpmu/uncore.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "vpmu/bits.hpp"
#include "vpmu/generation.hpp"

namespace vpmu::test {
namespace {

Uncore uncore_of(Generation g) { return Uncore{*describe(g).uncore}; }
std::uint64_t read(const Uncore& u, std::uint32_t index) {
  const MsrReadResult result = u.rdmsr(MsrIndex{index});
  EXPECT_EQ(result.status, MsrStatus::ok) << std::hex << index;
  return result.value;
}
void write(Uncore& u, std::uint32_t index, std::uint64_t value) {
  EXPECT_EQ(u.wrmsr(MsrIndex{index}, value), MsrStatus::ok) << std::hex << index;
}

/// The registers of one kind of uncore clock as a driver uses them, from the manual. SDM 3B 18.8.2, 18.9.6.
struct Clock {
  Generation generation;
  std::uint32_t counter, control, global_ctrl, global_status;
  unsigned width;
  std::uint64_t enable, interrupt, global_enable, freeze, core_1, overflowed;
  std::uint64_t ticks, tsc_ticks;  ///< Its rate.
};
std::ostream& operator<<(std::ostream& out, const Clock& c) { return out << describe(c.generation).name; }
constexpr std::array clocks{
    Clock{Generation::nehalem, 0x394, 0x395, 0x391, 0x392, 48, 1, 4, bit(32), bit(63), bit(49),
          bit(32) | bit(61) | bit(63), 4, 5},
    Clock{Generation::westmere_ep, 0x394, 0x395, 0x391, 0x392, 48, 1, 4, bit(32), bit(63), bit(49),
          bit(32) | bit(61) | bit(63), 4, 5},
    Clock{Generation::sandy_bridge, 0x395, 0x394, 0x391, 0x392, 48, bit(22), bit(20), bit(29), bit(31), bit(1), bit(0),
          1, 1},
    Clock{Generation::broadwell, 0x395, 0x394, 0x391, 0x392, 48, bit(22), bit(20), bit(29), bit(31), bit(1), bit(0), 1,
          1},
    Clock{Generation::skylake, 0x395, 0x394, 0xE01, 0xE02, 44, bit(22), bit(20), bit(29), bit(31), bit(1), bit(0), 1,
          1},
};

class UncoreClock : public testing::TestWithParam<Clock> {
 protected:
  const Clock& c{GetParam()};
  Uncore u{uncore_of(c.generation)};
  void start(std::uint64_t before_overflow, std::uint64_t control, std::uint64_t global) {
    write(u, c.counter, low_bits(c.width) + 1 - before_overflow);
    write(u, c.control, control);
    write(u, c.global_ctrl, global);
  }
  /// TSC ticks in which the clock makes `ticks` of its own.
  [[nodiscard]] std::uint64_t time_of(std::uint64_t ticks) const {
    return (ticks * c.tsc_ticks + c.ticks - 1) / c.ticks;
  }
};
INSTANTIATE_TEST_SUITE_P(Of, UncoreClock, testing::ValuesIn(clocks), [](const auto& p) {
  std::string name{describe(p.param.generation).name};
  std::erase(name, '-');
  return name;
});

TEST_P(UncoreClock, CountsAtItsRateWhileBothEnablesAreSet) {
  EXPECT_EQ(u.advance(1000), 0U);
  EXPECT_EQ(read(u, c.counter), 0U);
  write(u, c.control, c.enable);
  EXPECT_EQ(u.advance(1000), 0U);
  EXPECT_EQ(read(u, c.counter), 0U);
  write(u, c.global_ctrl, c.global_enable);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(u.advance(1), 0U);  // fractions of a tick are not lost
  EXPECT_EQ(read(u, c.counter), 1000 * c.ticks / c.tsc_ticks);
  write(u, c.control, 0);
  EXPECT_EQ(u.advance(1000), 0U);
  EXPECT_EQ(read(u, c.counter), 1000 * c.ticks / c.tsc_ticks);
}

// Rule Q7.
TEST_P(UncoreClock, OverflowNamesTheCoresThatAreSelected) {
  start(100, c.enable | c.interrupt, c.global_enable | c.core_1);
  ASSERT_EQ(u.until_overflow(), time_of(100));
  EXPECT_EQ(u.advance(time_of(100) - 1), 0U);
  EXPECT_EQ(read(u, c.global_status), 0U);
  ASSERT_EQ(u.until_overflow(), 1U);
  EXPECT_EQ(u.advance(1), CoreSet{2});
  EXPECT_EQ(read(u, c.global_status), c.overflowed);
  EXPECT_EQ(u.advance(1000), 0U) << "once";
  EXPECT_GT(read(u, c.counter), 0U) << "goes on";
}

TEST_P(UncoreClock, OverflowInterruptsNobodyUnasked) {
  start(100, c.enable, c.global_enable | c.core_1);
  EXPECT_EQ(u.until_overflow(), std::nullopt);
  EXPECT_EQ(u.advance(1000), 0U);
  EXPECT_EQ(read(u, c.global_status), c.overflowed & ~bit(61)) << "no interrupt was asked for";
  start(100, c.enable | c.interrupt, c.global_enable);
  EXPECT_EQ(u.until_overflow(), std::nullopt);
  EXPECT_EQ(u.advance(1000), 0U) << "no core is selected";
}

TEST_P(UncoreClock, StopsWithItsInterruptWhereItFreezes) {
  start(100, c.enable | c.interrupt, c.global_enable | c.core_1 | c.freeze);
  EXPECT_EQ(u.advance(time_of(5000)), CoreSet{2});
  EXPECT_EQ(read(u, c.counter), 0U);
  EXPECT_EQ(read(u, c.global_ctrl), c.core_1 | c.freeze);
  EXPECT_EQ(u.advance(5000), 0U);
  EXPECT_EQ(read(u, c.counter), 0U);
}

TEST_P(UncoreClock, AVeryLongTimeWraps) {
  start(1, c.enable | c.interrupt, c.global_enable | c.core_1);
  EXPECT_EQ(u.advance(~0ULL), CoreSet{2});
  EXPECT_EQ(read(u, c.counter) & ~low_bits(c.width), 0U);
}

/// Clocks of servers, for which it is not known how they interrupt a core.
struct BoxClock {
  Generation generation;
  std::uint32_t counter, control;
  std::uint64_t enable;
  std::uint32_t global_ctrl;
  std::uint64_t global_enable;
};
TEST(Uncore, ClocksOfServersCountAndInterruptNobody) {
  using enum Generation;
  for (const BoxClock& c :
       {BoxClock{nehalem_ex, 0x394, 0x395, 1, 0xC80, bit(31)}, BoxClock{westmere_ex, 0x394, 0x395, 1, 0xC80, bit(31)},
        BoxClock{sandy_bridge_ep, 0xC09, 0xC08, bit(22), 0xC00, 0},
        BoxClock{ivy_bridge_ep, 0xC09, 0xC08, bit(22), 0xC00, 0}, BoxClock{haswell_ep, 0x704, 0x703, bit(22), 0x700, 0},
        BoxClock{broadwell_de, 0x704, 0x703, bit(22), 0x700, 0},
        BoxClock{skylake_sp, 0x704, 0x703, bit(22), 0x700, 0}}) {
    Uncore u = uncore_of(c.generation);
    write(u, c.counter, low_bits(48) - 9);
    write(u, c.global_ctrl, c.global_enable);
    EXPECT_EQ(u.advance(100), 0U);
    EXPECT_EQ(read(u, c.counter), low_bits(48) - 9) << describe(c.generation).name;
    write(u, c.control, c.enable | bit(20));
    EXPECT_EQ(u.until_overflow(), std::nullopt);
    EXPECT_EQ(u.advance(100), 0U);
    EXPECT_EQ(read(u, c.counter), 90U) << describe(c.generation).name;
    EXPECT_EQ(read(u, c.global_ctrl), c.global_enable);
    EXPECT_EQ(u.unserved_selects(), 0U) << "the clock is served";
  }
}

// SDM 3B 18.8.2.1, figure 18-27.
TEST(Uncore, StatusOfNehalemIsClearedThroughItsOwnRegister) {
  Uncore u = uncore_of(Generation::nehalem);
  write(u, 0x394, low_bits(48));
  write(u, 0x395, 5);
  write(u, 0x391, bit(32) | bit(48));
  EXPECT_EQ(u.advance(10), CoreSet{1});
  EXPECT_EQ(u.wrmsr(MsrIndex{0x392}, 0), MsrStatus::gp);
  EXPECT_EQ(read(u, 0x393), 0U);
  write(u, 0x393, bit(32));
  EXPECT_EQ(read(u, 0x392), bit(61) | bit(63));
  write(u, 0x393, bit(61) | bit(63));
  EXPECT_EQ(read(u, 0x392), 0U);
}

// SDM 3B 18.8.2.2: OCC_CTR_RST reads 0.
TEST(Uncore, GeneralCountersHoldWhatIsWrittenAndTellThatNobodyCounts) {
  Uncore u = uncore_of(Generation::westmere);
  write(u, 0x3C7, bit(17) | 0x0108);
  EXPECT_EQ(read(u, 0x3C7), 0x0108U);
  EXPECT_EQ(u.unserved_selects(), 0U);
  write(u, 0x3C7, bit(22) | 0x0108);
  EXPECT_EQ(u.unserved_selects(), 1U);
  write(u, 0x3B7, 0x1234);
  write(u, 0x391, 0xFF);
  EXPECT_EQ(u.advance(1'000'000), 0U);
  EXPECT_EQ(read(u, 0x3B7), 0x1234U);
}

TEST(Uncore, CBoxesAreCounted) {
  EXPECT_EQ(read(uncore_of(Generation::sandy_bridge), 0x396), 4U);
  EXPECT_EQ(read(uncore_of(Generation::skylake), 0x396), 5U);
}

/// Addresses that generations have, and that they lack; SDM 3C tables 35-14, 35-15, 35-20 and 35-38.
struct Addresses {
  std::vector<Generation> generations;
  std::vector<std::uint32_t> there, missing;
};
TEST(Uncore, AddressesAreTheGenerations) {
  using enum Generation;
  const std::vector<Addresses> all{
      {{nehalem, westmere, westmere_ep},
       {0x391, 0x392, 0x393, 0x394, 0x395, 0x396, 0x3B0, 0x3B7, 0x3C0, 0x3C7},
       {0x390, 0x397, 0x3B8, 0x3C8, 0x700, 0xC00, 0xE01}},
      {{nehalem_ex, westmere_ex},
       {0x394, 0x395, 0xC00, 0xC11, 0xC20, 0xCFF, 0xD00, 0xDFF, 0xE00, 0xE5F},
       {0x391, 0x392, 0x393, 0x3B0, 0x3C0, 0xC12, 0xE60}},
      {{sandy_bridge, ivy_bridge, haswell, broadwell},
       {0x391, 0x392, 0x394, 0x395, 0x396, 0x3B0, 0x3B3, 0x700, 0x707, 0x731, 0x737, 0x747},
       {0x393, 0x3B4, 0x3C0, 0x708, 0x750, 0xC00, 0xE01}},
      {{sandy_bridge_ep, ivy_bridge_ep},
       {0xC00, 0xC08, 0xC09, 0xC10, 0xC17, 0xC24, 0xC39, 0xD00, 0xDFF},
       {0x391, 0x392, 0x394, 0x700, 0xC01, 0xE01}},
      {{haswell_ep, broadwell_de, broadwell_ep},
       {0x700, 0x747, 0xE00, 0xEFF},
       {0x391, 0x392, 0x394, 0x748, 0xC00, 0xF00}},
      {{skylake}, {0x394, 0x395, 0x396, 0x3B0, 0x3B3, 0x700, 0x747, 0xE01, 0xE02}, {0x391, 0x392, 0x393, 0xC00, 0xE00}},
      {{skylake_sp}, {0x300, 0x700, 0x72F, 0xA40, 0xAFF, 0xE00, 0xFBF}, {0x391, 0x392, 0x394, 0xC00, 0xFC0}},
  };
  std::set<const UncoreDesc*> looked_at;
  for (const Addresses& a : all)
    for (const Generation g : a.generations) {
      looked_at.insert(describe(g).uncore);
      Uncore u = uncore_of(g);
      for (const std::uint32_t i : a.there)
        EXPECT_NE(u.rdmsr(MsrIndex{i}).status, MsrStatus::unknown) << describe(g).name << std::hex << " " << i;
      for (const std::uint32_t i : a.missing) {
        EXPECT_EQ(u.rdmsr(MsrIndex{i}).status, MsrStatus::unknown) << describe(g).name << std::hex << " " << i;
        EXPECT_EQ(u.wrmsr(MsrIndex{i}, 0), MsrStatus::unknown) << describe(g).name << std::hex << " " << i;
      }
    }
  for (const GenerationDesc* const g : all_generations()) EXPECT_TRUE(looked_at.contains(g->uncore)) << g->name;
}

// Each bit of each register is either writable or raises #GP.
TEST(Uncore, EachBitIsKeptOrFaults) {
  for (const GenerationDesc* const g : all_generations()) {
    for (const UncoreMsr& row : g->uncore->msrs) {
      Uncore u{*g->uncore};
      for (unsigned b = 0; b < 64; ++b) {
        const bool legal = row.write != UncoreWrite::faults && (row.legal & bit(b)) != 0;
        EXPECT_EQ(u.check_wrmsr(row.first, bit(b)), legal ? MsrStatus::ok : MsrStatus::gp)
            << g->name << " " << row.name << " bit " << b;
        ASSERT_EQ(u.wrmsr(row.first, bit(b)), legal ? MsrStatus::ok : MsrStatus::gp)
            << g->name << " " << row.name << " bit " << b;
        const bool kept = legal && row.write == UncoreWrite::keeps && (row.transient & bit(b)) == 0;
        if (!legal) continue;
        EXPECT_EQ(u.rdmsr(row.first).value, kept ? bit(b) : 0) << g->name << " " << row.name << " bit " << b;
      }
    }
  }
}

TEST(Uncore, AllItsRegistersAreTrappedAndNoneIsTheCoresToo) {
  for (const GenerationDesc* const g : all_generations()) {
    const MsrSpans spans = trap_ranges(*g);
    EXPECT_LT(spans.all().size(), MsrSpans::capacity);
    for (const UncoreMsr& row : g->uncore->msrs) {
      const auto same = [&](const MsrSpan& s) {
        return s.first == row.first && s.count == row.count && s.name == row.name;
      };
      EXPECT_EQ(std::ranges::count_if(spans.all(), same), 1) << g->name << " " << row.name;
    }
    for (std::size_t i = 1; i < spans.all().size(); ++i)
      EXPECT_GE(spans.all()[i].first.value(), spans.all()[i - 1].first.value() + spans.all()[i - 1].count)
          << g->name << " " << spans.all()[i].name;
  }
}

/// Of slice 1: ten reads that hit, of them four of lines that another core has changed; three that miss; two writes
/// that miss.
LlcCounts some_traffic() {
  LlcCounts all;
  auto& cells = all.slices[1];
  cells[offcore_cell(OffcoreRequest::demand_data_read, OffcoreSupplier::l3)] = 5;
  cells[offcore_cell(OffcoreRequest::demand_code_read, OffcoreSupplier::l3)] = 1;
  cells[offcore_cell(OffcoreRequest::demand_data_read, OffcoreSupplier::l3_modified)] = 4;
  cells[offcore_cell(OffcoreRequest::demand_data_read, OffcoreSupplier::local_dram)] = 3;
  cells[offcore_cell(OffcoreRequest::demand_rfo, OffcoreSupplier::local_dram)] = 2;
  return all;
}

// SDM 3C table 19-17 (uncore events of the clients' last level cache).
TEST(UncoreCachesOf, AClientCountItsLookUpsAndMisses) {
  struct Row {
    std::uint64_t event, counted;
  };
  for (const Generation g : {Generation::sandy_bridge, Generation::haswell, Generation::skylake})
    for (const Row& row : {Row{0x8F34, 15}, Row{0x8834, 5}, Row{0x8634, 10}, Row{0x1834, 3}, Row{0x2834, 2},
                           Row{0x1F34, 13}, Row{0x8134, 0}, Row{0x4822, 4}, Row{0x4422, 0}}) {
      Uncore u = uncore_of(g);
      write(u, 0x710, row.event | bit(22));
      EXPECT_FALSE(u.wants_caches()) << "the global enable is off";
      write(u, describe(g).uncore->clock.global_ctrl.value(), bit(29));
      EXPECT_TRUE(u.wants_caches());
      write(u, 0x700, 0x8F34 | bit(22));
      write(u, 0x3B2, 0x0181 | bit(22));
      write(u, 0x3B3, 0x0281 | bit(22));
      write(u, 0x717, low_bits(44));
      write(u, 0x711, 0x8834 | bit(22));
      u.count(some_traffic());
      EXPECT_EQ(read(u, 0x716), row.counted) << std::hex << row.event;
      EXPECT_EQ(read(u, 0x717), 4U) << "wraps around";
      EXPECT_EQ(read(u, 0x706), 0U) << "another slice";
      EXPECT_EQ(read(u, 0x3B0), 5U) << "all requests to memory";
      EXPECT_EQ(read(u, 0x3B1), 3U) << "reads of data";
      EXPECT_EQ(u.unserved_selects(), 0U);
      write(u, 0x710, row.event);
      u.count(some_traffic());
      EXPECT_EQ(read(u, 0x716), row.counted) << "not enabled";
    }
}

TEST(UncoreCachesOf, AServerAreNotCounted) {
  for (const Generation g : {Generation::nehalem, Generation::haswell_ep, Generation::skylake_sp}) {
    Uncore u = uncore_of(g);
    EXPECT_FALSE(u.wants_caches());
    u.count(some_traffic());
  }
}

}  // namespace
}  // namespace vpmu::test
