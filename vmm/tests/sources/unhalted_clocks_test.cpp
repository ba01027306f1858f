#include "sources/unhalted_clocks.hpp"

#include <gtest/gtest.h>

#include <random>

#include "model/clocks.hpp"
#include "model/model.hpp"

namespace vmm {
namespace {

UnhaltedClocks clocks_of(vpmu::Generation generation, std::uint64_t tsc_khz) {
  UnhaltedClocks clocks{vpmu::describe(generation).bus_clock};
  clocks.follow(tsc_khz);
  return clocks;
}

// SDM 3B 18.17.4: the bus clock of 133.33 MHz, that of 100 MHz, and the core crystal clocks of Skylake.
TEST(UnhaltedClocks, TickAtTheRatesOfTheirModels) {
  using enum vpmu::Generation;
  constexpr std::uint64_t second = 2'400'000'000;
  struct Row {
    vpmu::Generation generation;
    std::uint64_t ticks;
  };
  for (const Row& row : {Row{nehalem, 133'333'333}, Row{westmere_ex, 133'333'333}, Row{sandy_bridge, 100'000'000},
                         Row{broadwell_de, 100'000'000}, Row{skylake, 24'000'000}, Row{skylake_sp, 25'000'000}}) {
    const Ticks ticks = clocks_of(row.generation, 2'400'000).pass(second);
    EXPECT_EQ(ticks.bus, row.ticks) << vpmu::describe(row.generation).name;
    EXPECT_EQ(ticks.cycles, second);
    EXPECT_EQ(ticks.ref, second) << "the core runs at the TSC's rate";
  }
}

// Of each model that a user can name: in a second of its own TSC.
TEST(UnhaltedClocks, TickAtTheirRateOnEachMachineModel) {
  unsigned seen = 0;
  for (const MachineModel& model : all_machine_models()) {
    const auto g = model.generation;
    const std::uint64_t hertz = g < vpmu::Generation::sandy_bridge ? 133'333'333
                                : g < vpmu::Generation::skylake    ? 100'000'000
                                : g == vpmu::Generation::skylake   ? 24'000'000
                                                                   : 25'000'000;
    const std::uint64_t tsc_khz = nominal_tsc_khz(model);
    EXPECT_EQ(clocks_of(g, tsc_khz).pass(tsc_khz * 1000).bus, hertz) << model.name;
    ++seen;
  }
  EXPECT_EQ(seen, 24U);
}

TEST(UnhaltedClocks, NoPartOfATickIsLostBetweenPieces) {
  std::mt19937_64 random{7};
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    UnhaltedClocks pieces = clocks_of(generation->generation, 2'593'907);
    std::uint64_t cycles = 0, ticks = 0;
    for (unsigned n = 0; n < 1000; ++n) {
      const std::uint64_t piece = n % 2 == 0 ? 1 : random() % 100'000;
      cycles += piece;
      ticks += pieces.pass(piece).bus;
    }
    EXPECT_EQ(ticks, clocks_of(generation->generation, 2'593'907).pass(cycles).bus) << generation->name;
    EXPECT_GT(ticks, 200'000U);
  }
}

TEST(UnhaltedClocks, SayHowManyCyclesComeBeforeATick) {
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    UnhaltedClocks clocks = clocks_of(generation->generation, 2'500'000);
    for (const std::uint64_t ticks : {1U, 2U, 1000U}) {
      UnhaltedClocks to_the_tick = clocks;
      EXPECT_EQ(clocks.pass(clocks.cycles_before_bus(ticks)).bus, ticks - 1) << generation->name;
      EXPECT_EQ(to_the_tick.pass(to_the_tick.cycles_before_bus(ticks) + 1).bus, ticks) << generation->name;
    }
  }
  EXPECT_EQ(clocks_of(vpmu::Generation::skylake, 2'500'000).cycles_before_bus(~0ULL), ~0ULL);
}

// SDM 3B 18.2.3: CPU_CLK_UNHALTED.REF_TSC is of the TSC, which is as fast at any frequency of the core.
TEST(UnhaltedClocks, TheTscIsAsFastAtAnyFrequencyOfTheCore) {
  for (const std::uint64_t core_khz : {3'200'000, 1'700'000}) {
    UnhaltedClocks clocks{vpmu::describe(vpmu::Generation::haswell).bus_clock};
    clocks.run_core_at(core_khz);
    clocks.follow(2'500'000);
    EXPECT_EQ(clocks.ref_after(core_khz), 2'500'000U);
    std::uint64_t ref = 0, bus = 0;
    for (std::uint64_t cycles = 0; cycles < core_khz; cycles += 100) {
      const Ticks ticks = clocks.pass(100);
      ref += ticks.ref;
      bus += ticks.bus;
    }
    EXPECT_EQ(ref, 2'500'000U) << "of a millisecond";
    EXPECT_EQ(bus, 100'000U);
    const std::uint64_t to_the_tick = clocks.cycles_before_ref(1000);
    EXPECT_LT(clocks.ref_after(to_the_tick), 1000U);
    EXPECT_GE(clocks.ref_after(to_the_tick + 1), 1000U);
  }
}

TEST(UnhaltedClocks, GoOnWhereTheyWereSaved) {
  UnhaltedClocks saved = clocks_of(vpmu::Generation::haswell, 2'500'000), restored = saved;
  EXPECT_EQ(saved.pass(24).bus, 0U);
  ASSERT_TRUE(restored.restore(saved.image()));
  EXPECT_EQ(restored.pass(1).bus, 1U);
  EXPECT_FALSE(restored.restore({.tsc_khz = 2'500'000, .bus_part = 25})) << "a whole tick";
  for (UnhaltedClocks* const clocks : {&saved, &restored}) clocks->run_core_at(3'000'000);
  ASSERT_TRUE(saved.restore({.tsc_khz = 2'500'000}));
  EXPECT_EQ(saved.pass(1).ref, 0U);
  EXPECT_FALSE(saved.image().is_new());
  ASSERT_TRUE(restored.restore(saved.image()));
  EXPECT_EQ(restored.pass(1).ref, 1U);
  EXPECT_FALSE(restored.restore({.tsc_khz = 2'500'000, .ref_part = 6})) << "a whole tick";
}

TEST(UnhaltedClocks, KeepTheirPartOfATickWhenTheTscChangesItsRate) {
  UnhaltedClocks clocks = clocks_of(vpmu::Generation::haswell, 2'500'000);
  EXPECT_EQ(clocks.pass(20).bus, 0U);
  clocks.follow(5'000'000);
  EXPECT_EQ(clocks.pass(9).bus, 0U);
  EXPECT_EQ(clocks.pass(1).bus, 1U) << "four fifths were over";
}

}  // namespace
}  // namespace vmm
