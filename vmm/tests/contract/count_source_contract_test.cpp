#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "contract/source_rigs.hpp"

// What every counting source guarantees, whatever it counts with. A new source needs a rig and a line in Sources.

namespace vmm::test {
namespace {

using namespace std::chrono_literals;
using vpmu::CounterId;
using vpmu::Counts;
using vpmu::PlanEntry;

constexpr CounterId pmc0 = CounterId::gp(0), pmc1 = CounterId::gp(1), pmc2 = CounterId::gp(2);

PlanEntry instructions(CounterId id) {
  return {.counter = id, .counts = Counts::instructions, .usr = true, .os = true, .distance = 1ULL << 48};
}

template <class Rig>
class CountSourceContract : public testing::Test {
 protected:
  void program(std::initializer_list<PlanEntry> entries) {
    plan_ = {};
    for (const PlanEntry& e : entries) plan_.entries[plan_.size++] = e;
    ASSERT_TRUE(rig_.source().program(plan_));
  }

  /// Runs once and adds the counts to `counted_`. Counts retirements as Pmu::retire() would.
  void run_once(std::optional<nanoseconds> at_most = 50us) {
    const auto end = rig_.source().run(rig_.guest.backend, at_most);
    ASSERT_TRUE(end);
    if (end->exit) {
      ASSERT_TRUE(std::holds_alternative<Interrupted>(*end->exit));
    }
    add(*end);
  }
  void add(const RunEnd& end) {
    const auto deltas = rig_.source().sync(rig_.guest.backend);
    ASSERT_TRUE(deltas);
    for (unsigned i = 0; i < vpmu::max_counters; ++i) counted_.value[i] += deltas->value[i];
    if (!end.retired) return;
    for (const PlanEntry& e : plan_.active()) counted_[e.counter] += end.retired->what.cpl == 0 ? e.os : e.usr;
  }
  void run_for(nanoseconds time) {
    for (const nanoseconds end = rig_.time.now + time; rig_.time.now < end;) {
      ASSERT_NO_FATAL_FAILURE(run_once());
    }
  }
  /// Expects that counter `id` counts during `measure` what really happens.
  template <class Measure>
  void expect_counts_truth(CounterId id, Measure measure) {
    const std::uint64_t before = counted_[id];
    const std::uint64_t truth = rig_.truth();
    measure();
    const std::uint64_t counted = counted_[id] - before;
    const std::uint64_t happened = rig_.truth() - truth;
    ASSERT_GT(happened, 0U);
    EXPECT_LE(counted, happened + Rig::slack);
    EXPECT_GE(counted + Rig::slack, happened);
  }

  Rig rig_;
  vpmu::CountPlan plan_{};
  vpmu::CountDeltas counted_{};
};

using Sources = testing::Types<FakeSourceRig, ClockSourceRig, StepSourceRig, ExactSourceRig, PerfSourceRig<0>,
                               PerfSourceRig<100>, PerfSourceRig<10'000>>;
TYPED_TEST_SUITE(CountSourceContract, Sources);

TYPED_TEST(CountSourceContract, CountsNothingWithoutAPlan) {
  this->program({});
  this->run_for(1ms);
  for (const std::uint64_t n : this->counted_.value) EXPECT_EQ(n, 0U);
}

// Callers may bypass an idle source and use the back end: run() of the source must do no more than the back end's.
TYPED_TEST(CountSourceContract, IdleItOnlyRuns) {
  auto& backend = this->rig_.guest.backend;
  this->program({});
  this->run_once();
  ASSERT_TRUE(this->rig_.source().is_idle());
  const std::size_t calls = backend.calls.size();
  this->rig_.time.due = this->rig_.time.now + 10us;
  const auto end = this->rig_.source().run(backend, std::nullopt);
  ASSERT_TRUE(end);
  EXPECT_EQ(std::vector<std::string>(backend.calls.begin() + static_cast<std::ptrdiff_t>(calls), backend.calls.end()),
            std::vector<std::string>{"run"});
  const auto deltas = this->rig_.source().sync(backend);
  ASSERT_TRUE(deltas);
  for (const std::uint64_t n : deltas->value) EXPECT_EQ(n, 0U);
  EXPECT_EQ(backend.calls.size(), calls + 1);
}

TYPED_TEST(CountSourceContract, IsNotIdleWhileItCounts) {
  this->program({instructions(pmc0)});
  EXPECT_FALSE(this->rig_.source().is_idle());
  this->run_once();
  EXPECT_FALSE(this->rig_.source().is_idle());
}

TYPED_TEST(CountSourceContract, CountsWhatHappened) {
  this->program({instructions(pmc0)});
  this->expect_counts_truth(pmc0, [&] { this->run_for(5ms); });
}

TYPED_TEST(CountSourceContract, CountersOfOneEventAgree) {
  this->program({instructions(pmc0), instructions(pmc2)});
  this->run_for(1ms);
  EXPECT_GT(this->counted_[pmc0], 0U);
  EXPECT_EQ(this->counted_[pmc0], this->counted_[pmc2]);
  EXPECT_EQ(this->counted_[pmc1], 0U) << "not in the plan";
}

TYPED_TEST(CountSourceContract, SyncIsAdditive) {
  this->program({instructions(pmc0)});
  this->expect_counts_truth(pmc0, [&] {
    for (int n = 0; n < 300; ++n) this->run_once(nanoseconds{700 + 13 * n});
  });
  const auto again = this->rig_.source().sync(this->rig_.guest.backend);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)[pmc0], 0U) << "each event is handed out once";
}

// A counter that overflowed late would interrupt late, and write its record for a later instruction.
TYPED_TEST(CountSourceContract, ComesBackWhenACounterIsDueAndNeverMuchLater) {
  for (const std::uint64_t distance : {1ULL, 7ULL, 1000ULL, 54'321ULL}) {
    PlanEntry e = instructions(pmc0);
    e.distance = distance;
    e.wants_overflow = true;
    this->program({e});
    const std::uint64_t before = this->counted_[pmc0];
    for (int runs = 0; this->counted_[pmc0] - before < distance; ++runs) {
      ASSERT_LT(runs, 60'000) << "distance " << distance;
      ASSERT_NO_FATAL_FAILURE(this->run_once(std::nullopt));
    }
    EXPECT_LE(this->counted_[pmc0] - before, distance + TypeParam::latest) << "distance " << distance;
  }
}

TYPED_TEST(CountSourceContract, NearestOfSeveralCountersDecides) {
  PlanEntry near = instructions(pmc1);
  near.distance = 500;
  near.wants_overflow = true;
  PlanEntry far = instructions(pmc0);
  far.distance = 1'000'000;
  far.wants_overflow = true;
  this->program({far, near});
  for (int runs = 0; this->counted_[pmc1] < 500; ++runs) {
    ASSERT_LT(runs, 1000);
    ASSERT_NO_FATAL_FAILURE(this->run_once(std::nullopt));
  }
  EXPECT_LE(this->counted_[pmc1], 500 + TypeParam::latest);
}

TYPED_TEST(CountSourceContract, ComesBackInTimeWhenAskedTo) {
  this->program({instructions(pmc0)});
  const nanoseconds begin = this->rig_.time.now;
  this->run_once(1ms);
  EXPECT_LE(this->rig_.time.now - begin, 1ms + 1us);
}

TYPED_TEST(CountSourceContract, AKickComesOutBeforeAnyInstruction) {
  this->program({instructions(pmc0)});
  for (int n = 0; n < 20; ++n) {
    this->run_once(nanoseconds{700 + 1300 * n});
    this->rig_.cpu.kick();
    const std::uint64_t before = this->rig_.truth();
    bool came_out = false;
    for (int calls = 0; calls < 2 && !came_out; ++calls) {
      const auto end = this->rig_.source().come_out(this->rig_.guest.backend);
      ASSERT_TRUE(end);
      this->add(*end);
      came_out = end->exit && std::holds_alternative<Interrupted>(*end->exit);
    }
    EXPECT_TRUE(came_out);
    EXPECT_EQ(this->rig_.truth(), before);
    EXPECT_EQ(this->rig_.guest.backend.kicked, 0) << "the back end has taken it";
  }
}

// Rules C1, C2. An estimating source may need a few milliseconds to notice a change of level.
TYPED_TEST(CountSourceContract, CountsAtTheLevelsOfTheCounterOnly) {
  PlanEntry user = instructions(pmc0);
  user.os = false;
  PlanEntry kernel = instructions(pmc1);
  kernel.usr = false;
  this->program({user, kernel});
  for (const std::uint8_t cpl : std::array<std::uint8_t, 3>{3, 0, 3}) {
    const CounterId counts = cpl == 0 ? pmc1 : pmc0;
    const CounterId rests = cpl == 0 ? pmc0 : pmc1;
    this->rig_.guest.enter_ring(cpl);
    this->run_for(5ms);
    const std::uint64_t at_rest = this->counted_[rests];
    this->expect_counts_truth(counts, [&] { this->run_for(5ms); });
    EXPECT_EQ(this->counted_[rests], at_rest);
  }
}

TYPED_TEST(CountSourceContract, StopsAndStartsWithThePlan) {
  this->program({instructions(pmc0)});
  this->run_for(1ms);
  this->program({});
  const std::uint64_t stopped = this->counted_[pmc0];
  this->run_for(1ms);
  EXPECT_EQ(this->counted_[pmc0], stopped);
  this->program({instructions(pmc0)});
  this->expect_counts_truth(pmc0, [&] { this->run_for(1ms); });
}

TYPED_TEST(CountSourceContract, NewPlanReplacesTheOldOne) {
  this->program({instructions(pmc0)});
  this->run_for(1ms);
  this->program({instructions(pmc1)});
  const std::uint64_t old = this->counted_[pmc0];
  this->expect_counts_truth(pmc1, [&] { this->run_for(1ms); });
  EXPECT_EQ(this->counted_[pmc0], old);
}

TYPED_TEST(CountSourceContract, ExitsOfTheGuestAreHandedOn) {
  this->program({instructions(pmc0)});
  auto& backend = this->rig_.guest.backend;
  backend.script.push_back(FakeBackend::ends_with(SystemEvent{42}));
  for (int runs = 0;; ++runs) {
    ASSERT_LT(runs, 10);
    const auto end = this->rig_.source().run(backend, std::nullopt);
    ASSERT_TRUE(end);
    if (!end->exit) continue;
    ASSERT_TRUE(std::holds_alternative<SystemEvent>(*end->exit));
    EXPECT_EQ(std::get<SystemEvent>(*end->exit).type, 42U);
    break;
  }
}

// walk() ends on an instruction of the program, sooner or later on each.
TYPED_TEST(CountSourceContract, WalksEndOnRealInstructions) {
  PlanEntry e = instructions(pmc0);
  e.distance = 1000;
  e.wants_overflow = e.precise = e.armed = true;
  this->program({e});
  bool loaded = false;
  for (int walks = 0; walks < 100 && !loaded; ++walks) {
    const auto end = this->rig_.source().walk(this->rig_.guest.backend);
    ASSERT_TRUE(end);
    if (!end->retired) continue;
    const vpmu::Retirement& what = end->retired->what;
    EXPECT_TRUE(this->rig_.cpu.has_instruction_at(what.ip.value())) << std::hex << what.ip.value();
    EXPECT_TRUE(this->rig_.cpu.has_instruction_at(what.next_ip.value())) << std::hex << what.next_ip.value();
    loaded = what.has_load;
    EXPECT_EQ(what.has_load, what.ip.value() == LoopingGuest::load_at);
  }
  EXPECT_TRUE(loaded);
}

TYPED_TEST(CountSourceContract, FailureOfTheHostIsReported) {
  this->program({instructions(pmc0)});
  this->rig_.guest.backend.broken.insert(std::string{TypeParam::vital});
  EXPECT_FALSE(this->rig_.source().run(this->rig_.guest.backend, std::nullopt));
}

TYPED_TEST(CountSourceContract, HasANameAndStatisticsWithNamesOfTheirOwn) {
  EXPECT_FALSE(this->rig_.source().traits().name.empty());
  std::multiset<std::string> names;
  this->rig_.source().visit_statistics([&](std::string_view name, std::uint64_t) { names.emplace(name); });
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1U) << name;
}

}  // namespace
}  // namespace vmm::test
