#include "sources/perf_source.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <string>

#include "contract/source_rigs.hpp"

// What the perf source does beyond the contract of all sources: who counts, what it costs, and hosts that fail or lie.

namespace vmm::test {
namespace {

using namespace std::chrono_literals;
using vpmu::CounterId;
using vpmu::Counts;
using vpmu::PlanEntry;

constexpr CounterId pmc0 = CounterId::gp(0), pmc1 = CounterId::gp(1), fixed0 = CounterId::fixed(0);
constexpr std::uint64_t far_away = 1ULL << 47;

PlanEntry counter(CounterId id, Counts counts, std::uint8_t code, std::uint8_t umask = 0) {
  const vpmu::EventSpec spec{.code = code, .umask = umask, .usr = true, .os = true};
  return {.counter = id, .spec = spec, .counts = counts, .usr = true, .os = true, .distance = far_away};
}
PlanEntry instructions(CounterId id = pmc0) { return counter(id, Counts::instructions, 0xC0); }
PlanEntry sampling(PlanEntry e, std::uint64_t distance) {
  e.distance = distance;
  e.wants_overflow = true;
  return e;
}

class PerfSourceOn : public testing::Test {
 protected:
  static constexpr std::uint64_t margin = 200;

  PerfSourceOn() {
    rig_.cpu.per_instruction = 10ns;
    perf_.is_branch = [](std::uint64_t at) { return at == LoopingGuest::code + 8; };
  }
  void make(PerfCalibration calibration = {.margin_instructions = margin, .margin_cycles = margin, .lands = true}) {
    auto exact = std::make_unique<ExactSource>(
        std::make_unique<FakeTimer>(rig_.time), rig_.guest.breakpoints, rig_.guest.view, rig_.guest.memory,
        vpmu::describe(vpmu::Generation::skylake), ModelLog{}, vpmu::exec::Compiling{});
    source_ = std::make_unique<PerfSource>(perf_.host(), calibration, std::move(exact),
                                           vpmu::describe(vpmu::Generation::skylake));
  }
  Result<void> try_program(std::initializer_list<PlanEntry> entries) {
    if (!source_) make();
    plan_ = {};
    for (const PlanEntry& e : entries) plan_.entries[plan_.size++] = e;
    return source_->program(plan_);
  }
  void program(std::initializer_list<PlanEntry> entries) {
    const auto done = try_program(entries);
    ASSERT_TRUE(done) << describe(done.error());
  }
  /// Runs once; adds up what PMU code would count. Null when the run failed.
  std::optional<RunEnd> run(std::optional<nanoseconds> at_most = std::nullopt) {
    auto end = source_->run(rig_.guest.port, at_most);
    auto deltas = source_->sync(rig_.guest.port);
    failure_ = !end ? describe(end.error()) : !deltas ? describe(deltas.error()) : "";
    if (!failure_.empty()) return std::nullopt;
    for (const PlanEntry& e : plan_.active()) {
      counted_[e.counter] += (*deltas)[e.counter];
      if (end->retired && (e.counts == Counts::instructions || e.counts == Counts::cycles)) ++counted_[e.counter];
      if (end->retired && e.counts == Counts::branches && end->retired->what.branch.kind != vpmu::BranchKind::none)
        ++counted_[e.counter];
    }
    return *end;
  }
  /// Runs to where `id` has counted `events`, at most.
  void run_to(CounterId id, std::uint64_t events) {
    for (int n = 0; counted_[id] < events; ++n) {
      ASSERT_LT(n, 3000);
      ASSERT_TRUE(run()) << failure_;
    }
  }
  [[nodiscard]] std::uint64_t truth() const { return rig_.cpu.retired + rig_.guest.port.passed; }
  [[nodiscard]] std::uint64_t statistic(const std::string& name) const {
    std::map<std::string, std::uint64_t> all;
    source_->visit_statistics([&](std::string_view n, std::uint64_t value) { all[std::string{n}] = value; });
    return all.contains(name) ? all[name] : 0;
  }

  LoopingGuest rig_;
  FakePerf perf_{rig_.guest, rig_.cpu};
  std::unique_ptr<PerfSource> source_;
  vpmu::CountPlan plan_{};
  vpmu::CountDeltas counted_{};
  std::string failure_;
};

TEST_F(PerfSourceOn, OneHostEventOfTheGuestForEachCounter) {
  PlanEntry user = counter(pmc1, Counts::branches, 0xC4);
  user.os = user.spec.os = false;
  program({instructions(), user, counter(fixed0, Counts::instructions, 0)});
  ASSERT_EQ(perf_.opened.size(), 3U);
  EXPECT_EQ(perf_.opened[0],
            (PerfEventSpec{.event = {PERF_TYPE_RAW, 0xC0}, .usr = true, .os = true, .guest_only = true}));
  EXPECT_EQ(perf_.opened[1],
            (PerfEventSpec{.event = {PERF_TYPE_RAW, 0xC4}, .usr = true, .os = false, .guest_only = true}));
  EXPECT_EQ(perf_.opened[2].event, perf_.opened[0].event);
  EXPECT_EQ(perf_.running(), 3U);
}

TEST_F(PerfSourceOn, EventsStayOpenAndRestWhileTheirCounterDoes) {
  program({instructions()});
  ASSERT_TRUE(run(1us));
  program({});
  EXPECT_EQ(perf_.running(), 0U);
  ASSERT_TRUE(run(1us));
  const std::uint64_t before = truth();
  counted_ = {};
  program({instructions()});
  ASSERT_TRUE(run(1us));
  EXPECT_EQ(perf_.opened.size(), 1U);
  EXPECT_EQ(counted_[pmc0], truth() - before) << "nothing of the time between";
  program({counter(pmc0, Counts::branches, 0xC4)});
  EXPECT_EQ(perf_.opened.size(), 2U) << "another event";
  EXPECT_EQ(perf_.running(), 1U);
}

TEST_F(PerfSourceOn, HostCountsAndTheEngineRests) {
  program({instructions(), counter(pmc1, Counts::branches, 0xC4)});
  ASSERT_TRUE(run(1ms));
  EXPECT_GT(counted_[pmc0], 50'000U);
  EXPECT_EQ(counted_[pmc1], rig_.cpu.retired_at[LoopingGuest::code + 8]);
  EXPECT_EQ(statistic("pmu.exact.instructions"), 0U);
  EXPECT_EQ(statistic("pmu.perf.windows"), 0U);
}

// The engine's part is the margin and what skid left of it.
TEST_F(PerfSourceOn, EngineGoesTheLastPieceToTheVeryEvent) {
  for (const std::uint64_t skid : {0ULL, 37ULL, 199ULL}) {
    SCOPED_TRACE(skid);
    source_.reset();
    counted_ = {};
    perf_.skid = skid;
    const std::uint64_t begin = truth();
    program({sampling(instructions(), 100'000)});
    run_to(pmc0, 100'000);
    EXPECT_EQ(counted_[pmc0], 100'000U);
    EXPECT_EQ(truth() - begin, 100'000U);
    EXPECT_EQ(statistic("pmu.exact.instructions"), margin - skid);
    EXPECT_EQ(statistic("pmu.perf.windows"), 1U);
    EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U);
  }
}

TEST_F(PerfSourceOn, PeriodIsSetOnceForEachOverflow) {
  program({sampling(instructions(), 1'000'000)});
  for (int n = 0; n < 5; ++n) {
    ASSERT_TRUE(run(1us));
  }
  EXPECT_EQ(perf_.periods_set, 1U) << "exits on the way leave it alone";
  run_to(pmc0, 1'000'000);
  counted_ = {};
  program({sampling(instructions(), 500'000)});
  run_to(pmc0, 500'000);
  EXPECT_EQ(counted_[pmc0], 500'000U);
  EXPECT_EQ(perf_.periods_set, 2U);
}

TEST_F(PerfSourceOn, OvershootIsCountedLosesNothingAndMakesTheMarginLonger) {
  perf_.skid = 1000;
  const std::uint64_t begin = truth();
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(counted_[pmc0], 100'800U) << "1000 behind a stop 200 before";
  EXPECT_EQ(truth() - begin, 100'800U);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 1U);
  EXPECT_EQ(statistic("pmu.perf.margin"), 1500U);
  counted_ = {};
  program({sampling(instructions(), 100'000)});
  run_to(pmc0, 100'000);
  EXPECT_EQ(counted_[pmc0], 100'000U) << "now it is there in time";
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 1U);
}

TEST_F(PerfSourceOn, ArmedCountersWalkInTheEngine) {
  PlanEntry loads = sampling(counter(pmc0, Counts::loads, 0xD0, 0x81), far_away);
  loads.precise = loads.armed = true;
  program({loads});
  rig_.guest.port.registers.rip = LoopingGuest::code;
  bool loaded = false;
  for (int n = 0; n < 8 && !loaded; ++n) {
    const auto end = source_->walk(rig_.guest.port, plan_);
    ASSERT_TRUE(end && end->retired);
    loaded = end->retired->what.has_load;
    EXPECT_EQ(loaded, end->retired->what.ip.value() == LoopingGuest::load_at);
  }
  EXPECT_TRUE(loaded);
  ASSERT_TRUE(run()) << "as the vCPU loop does between walks";
  EXPECT_EQ(rig_.cpu.retired, 0U) << "not an instruction on the host";
}

TEST_F(PerfSourceOn, BranchRecordsNeedTheEngine) {
  program({instructions()});
  plan_.branches_wanted = true;
  ASSERT_TRUE(source_->program(plan_));
  ASSERT_TRUE(run());
  EXPECT_EQ(rig_.cpu.retired, 0U);
}

// 1 load in 8 instructions. On a newer Intel host that is no architectural event.
TEST_F(PerfSourceOn, EventsThatTheHostLacksAreCountedByTheEngineAndNamed) {
  perf_.host_cpu = {.vendor = HostVendor::intel, .generation = {}};
  program({instructions(), counter(pmc1, Counts::loads, 0xD0, 0x81)});
  const std::uint64_t begin = truth();
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], truth() - begin);
  EXPECT_EQ(counted_[pmc1], counted_[pmc0] / 8);
  EXPECT_GT(counted_[pmc1], 0U);
  EXPECT_EQ(statistic("pmu.perf.by_engine.r81d0"), 1U);
  EXPECT_EQ(rig_.cpu.retired, 0U);
  counted_ = {};
  const std::uint64_t again = truth();
  program({instructions()});
  ASSERT_TRUE(run());  // out of the engine's burst, by a single-step on the host
  const std::uint64_t on_host = rig_.cpu.retired;
  EXPECT_EQ(on_host, 1U);
  ASSERT_TRUE(run(1us));
  EXPECT_GT(rig_.cpu.retired, on_host) << "back on the host";
  EXPECT_EQ(counted_[pmc0], truth() - again) << "what was stepped is not counted twice";
}

TEST_F(PerfSourceOn, EventsThatNobodyCountsAreRefusedByName) {
  perf_.host_cpu = {.vendor = HostVendor::amd, .generation = {}};
  program({counter(pmc0, Counts::unmodelled, 0xE6, 0x01), counter(pmc1, Counts::never, 0xC9, 0x01)});
  EXPECT_EQ(statistic("pmu.perf.refused.r01e6"), 1U);
  EXPECT_EQ(statistic("pmu.perf.refused.r01c9"), 0U) << "cannot happen: 0 is right";
  ASSERT_TRUE(run(1us));
  EXPECT_EQ(counted_[pmc0], 0U);
  EXPECT_GT(rig_.cpu.retired, 0U) << "on the host: the engine could not count it either";
}

TEST_F(PerfSourceOn, EventThatOnlyTheHostKnowsOverflowsWhereItsKickComes) {
  perf_.skid = 30;
  program({sampling(counter(pmc0, Counts::unmodelled, 0xE6, 0x01), 10'000)});
  ASSERT_TRUE(run());
  EXPECT_EQ(counted_[pmc0], 10'030U);
  EXPECT_EQ(rig_.cpu.retired, 10'030U);
  EXPECT_EQ(statistic("pmu.perf.overshoots"), 0U) << "nothing better was promised";
}

TEST_F(PerfSourceOn, HostThatRefusesOneEventLeavesItToTheEngine) {
  perf_.open_errors[{PERF_TYPE_RAW, 0x81D0}] = EINVAL;
  program({counter(pmc0, Counts::loads, 0xD0, 0x81)});
  EXPECT_EQ(statistic("pmu.perf.by_engine.r81d0"), 1U);
  ASSERT_TRUE(run());
  EXPECT_GT(counted_[pmc0], 0U);
}

TEST_F(PerfSourceOn, HostThatIsOutOfCountersOrRightsEndsTheRunWithAdvice) {
  for (const int error : {EACCES, EPERM, EBUSY, EMFILE}) {
    source_.reset();
    perf_.open_error = error;
    const auto done = try_program({instructions()});
    ASSERT_FALSE(done) << error;
    EXPECT_EQ(done.error().system_errno, error);
    EXPECT_FALSE(done.error().advice.empty());
  }
}

// Half of the time without a counter: twice what was counted is the guess, and it is told.
TEST_F(PerfSourceOn, TurnsOnTheHostsCountersAreScaledAndTold) {
  perf_.share = 50;
  program({instructions()});
  for (int n = 0; n < 200; ++n) {
    ASSERT_TRUE(run(777ns)) << failure_;
  }
  EXPECT_NEAR(static_cast<double>(counted_[pmc0]), static_cast<double>(truth()), 200.0);
  EXPECT_GT(statistic("pmu.perf.guessed"), truth() / 3);
}

TEST_F(PerfSourceOn, CounterWithoutAnyTimeEndsTheRunWithAdvice) {
  perf_.share = 0;
  perf_.ns_per_instruction = 100'000;
  program({instructions()});
  ASSERT_TRUE(run(5us)) << failure_;
  EXPECT_EQ(counted_[pmc0], 0U);
  for (int n = 0; n < 300 && failure_.empty(); ++n) run(5us);
  EXPECT_NE(failure_.find("got no counter of the host's for 1"), std::string::npos) << failure_;
  EXPECT_NE(failure_.find("nmi_watchdog"), std::string::npos) << failure_;
}

// A host's PMU does not see what KVM emulates: known, and stated.
TEST_F(PerfSourceOn, InstructionsThatKvmEmulatesAreMissing) {
  perf_.emulated_at = LoopingGuest::load_at;
  program({instructions()});
  ASSERT_TRUE(run(100us));
  EXPECT_EQ(counted_[pmc0], truth() - rig_.cpu.retired_at[LoopingGuest::load_at]);
  EXPECT_FALSE(source_->traits().exact_counts);
}

TEST_F(PerfSourceOn, CalibrationLowersWhatIsPromised) {
  make();
  EXPECT_TRUE(source_->traits().precise_ip);
  make({.margin_instructions = longest_margin, .margin_cycles = longest_margin, .lands = false});
  EXPECT_FALSE(source_->traits().precise_ip);
}

// An instruction that leaves the guest has not retired yet. The port's script takes the place of a load that stands
// where the engine's burst ends.
TEST_F(PerfSourceOn, LeavesTheEngineOnlyBetweenInstructions) {
  perf_.host_cpu = {.vendor = HostVendor::intel, .generation = {}};
  rig_.guest.port.registers.rip = LoopingGuest::load_at;
  program({counter(pmc1, Counts::loads, 0xD0, 0x81)});
  ASSERT_TRUE(run());
  ASSERT_EQ(rig_.guest.port.registers.rip, LoopingGuest::load_at);
  rig_.guest.port.script.push_back(FakePort::rdmsr(0xC1));
  const auto exit = run();
  ASSERT_TRUE(exit && exit->exit && std::holds_alternative<MsrRead>(*exit->exit));
  program({instructions()});
  const auto end = run();
  ASSERT_TRUE(end && end->retired);
  EXPECT_EQ(end->retired->what.ip.value(), LoopingGuest::load_at);
  ASSERT_TRUE(run(1us));
  EXPECT_GT(rig_.cpu.retired, 0U) << "and now on the host";
}

}  // namespace
}  // namespace vmm::test
