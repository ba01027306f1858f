#include "sources/walk_goal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <ostream>

#include "vpmu/pmu.hpp"

namespace vmm::test {
namespace {

using vpmu::BranchKind;
using vpmu::CounterId;
using vpmu::Counts;
using vpmu::HitLevel;
using vpmu::PlanEntry;
using vpmu::Retirement;

constexpr vpmu::GuestLinear code{0x40'0000};

vpmu::CountPlan plan_of(std::initializer_list<PlanEntry> entries) {
  vpmu::CountPlan plan;
  for (const PlanEntry& e : entries) {
    plan.entries[plan.size] = e;
    plan.entries[plan.size].counter = CounterId::gp(plan.size);
    ++plan.size;
  }
  return plan;
}
PlanEntry armed(Counts counts) { return {.counts = counts, .usr = true, .os = true, .armed = true}; }

Instruction plain() { return {.length = 1, .steppable = true}; }
Instruction load() {
  Instruction i = plain();
  i.load.emplace();
  return i;
}
Instruction locked_load() {
  Instruction i = load();
  i.locked = true;
  return i;
}
Instruction store() {
  Instruction i = plain();
  i.store.emplace();
  return i;
}
Instruction branch(BranchKind kind) {
  Instruction i = plain();
  i.branch = kind;
  return i;
}

TEST(GoalOf, IsNothingWhileNothingIsArmed) {
  PlanEntry e = armed(Counts::instructions);
  e.armed = false;
  const WalkGoal goal = goal_of(plan_of({e}));
  EXPECT_FALSE(goal.meets(plain()));
  EXPECT_FALSE(goal.usr || goal.os);
}

TEST(GoalOf, TakesTheLevelsOfTheArmedCounters) {
  PlanEntry user = armed(Counts::loads);
  user.os = false;
  PlanEntry kernel_unarmed = armed(Counts::stores);
  kernel_unarmed.armed = kernel_unarmed.usr = false;
  const WalkGoal goal = goal_of(plan_of({user, kernel_unarmed}));
  EXPECT_TRUE(goal.usr);
  EXPECT_FALSE(goal.os);
  EXPECT_FALSE(goal.meets(store()));
}

/// For which of these instructions the event can have a record.
struct Row {
  const char* name;
  Counts counts;
  bool plain{}, load{}, locked_load{}, store{}, conditional{}, call{}, ret{}, jump{}, far{};
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};
class GoalOfEvent : public testing::TestWithParam<Row> {};
TEST_P(GoalOfEvent, IsMetByItsInstructions) {
  const Row& row = GetParam();
  const WalkGoal goal = goal_of(plan_of({armed(row.counts)}));
  EXPECT_EQ(goal.meets(plain()), row.plain);
  EXPECT_EQ(goal.meets(load()), row.load);
  EXPECT_EQ(goal.meets(locked_load()), row.locked_load);
  EXPECT_EQ(goal.meets(store()), row.store);
  EXPECT_EQ(goal.meets(branch(BranchKind::conditional)), row.conditional);
  EXPECT_EQ(goal.meets(branch(BranchKind::near_rel_call)), row.call);
  EXPECT_EQ(goal.meets(branch(BranchKind::near_ind_call)), row.call);
  EXPECT_EQ(goal.meets(branch(BranchKind::near_ret)), row.ret);
  EXPECT_EQ(goal.meets(branch(BranchKind::near_ind_jmp)), row.jump);
  EXPECT_EQ(goal.meets(branch(BranchKind::far)), row.far);
}
constexpr Row any(const char* name, Counts counts) {
  return {name, counts, true, true, true, true, true, true, true, true, true};
}
constexpr Row loads(const char* name, Counts counts) {
  return {.name = name, .counts = counts, .load = true, .locked_load = true};
}
INSTANTIATE_TEST_SUITE_P(
    Of, GoalOfEvent,
    testing::Values(any("Instructions", Counts::instructions), any("Cycles", Counts::cycles),
                    loads("Loads", Counts::loads), loads("L3Miss", Counts::l3_miss),
                    loads("LoadLatency", Counts::load_latency),
                    Row{.name = "LockedLoads", .counts = Counts::locked_loads, .locked_load = true},
                    Row{.name = "Stores", .counts = Counts::stores, .store = true},
                    Row{.name = "Branches",
                        .counts = Counts::branches,
                        .conditional = true,
                        .call = true,
                        .ret = true,
                        .jump = true,
                        .far = true},
                    Row{.name = "TakenBranches",
                        .counts = Counts::branches_taken,
                        .conditional = true,
                        .call = true,
                        .ret = true,
                        .jump = true},
                    Row{.name = "NearBranches",
                        .counts = Counts::branches_near,
                        .conditional = true,
                        .call = true,
                        .ret = true,
                        .jump = true},
                    Row{.name = "NotTaken", .counts = Counts::branches_not_taken, .conditional = true},
                    Row{.name = "Conditional", .counts = Counts::branches_conditional, .conditional = true},
                    Row{.name = "Calls", .counts = Counts::branches_call, .call = true},
                    Row{.name = "Returns", .counts = Counts::branches_return, .ret = true},
                    Row{.name = "FarBranches", .counts = Counts::branches_far, .far = true}),
    [](const auto& row) { return row.param.name; });

// Rule P18.
TEST(GoalOf, AnyRetirementForFormsThatCountCycles) {
  PlanEntry e = armed(Counts::loads);
  e.per_cycle = true;
  EXPECT_TRUE(goal_of(plan_of({e})).meets(plain()));
}

/// A retired instruction that loads and stores.
Retirement load_and_store() { return {.ip = code, .next_ip = code + 4, .has_load = true, .has_store = true}; }
Retirement stated(Counts counts, Retirement r) {
  state_outcome(plan_of({armed(counts)}), r);
  return r;
}

TEST(StateOutcome, LoadIsWhereTheEventSaysItHit) {
  const auto level = [](Counts counts) { return stated(counts, load_and_store()).load.level; };
  EXPECT_EQ(level(Counts::l1_hit), HitLevel::l1);
  EXPECT_EQ(level(Counts::lfb_hit), HitLevel::lfb);
  EXPECT_EQ(level(Counts::l1_miss), HitLevel::l2);
  EXPECT_EQ(level(Counts::l2_hit), HitLevel::l2);
  EXPECT_EQ(level(Counts::l2_miss), HitLevel::l3);
  EXPECT_EQ(level(Counts::l3_hit), HitLevel::l3);
  EXPECT_EQ(level(Counts::l3_miss), HitLevel::dram);
  EXPECT_EQ(level(Counts::loads), HitLevel::unknown);
}

TEST(StateOutcome, SaysNothingOfInstructionsOfAnotherKind) {
  Retirement r = load_and_store();
  r.has_load = r.has_store = false;
  EXPECT_EQ(stated(Counts::l1_hit, r).load.level, HitLevel::unknown);
  EXPECT_FALSE(stated(Counts::stlb_miss_loads, r).load.stlb_miss);
  EXPECT_FALSE(stated(Counts::stlb_miss_stores, r).store.stlb_miss);
  EXPECT_FALSE(stated(Counts::mispredicts, r).branch.mispredicted);
}

TEST(StateOutcome, FirstCounterDecidesTheLevel) {
  Retirement r = load_and_store();
  state_outcome(plan_of({armed(Counts::l3_miss), armed(Counts::l1_hit)}), r);
  EXPECT_EQ(r.load.level, HitLevel::dram);
}

TEST(StateOutcome, CounterThatIsNotArmedOrFilteredOutSaysNothing) {
  PlanEntry unarmed = armed(Counts::l1_hit);
  unarmed.armed = false;
  PlanEntry user = armed(Counts::l2_hit);
  user.os = false;
  Retirement r = load_and_store();
  state_outcome(plan_of({unarmed, user}), r);
  EXPECT_EQ(r.load.level, HitLevel::unknown);
  r.cpl = 3;
  state_outcome(plan_of({unarmed, user}), r);
  EXPECT_EQ(r.load.level, HitLevel::l2);
}

/// An environment whose memory accepts every access.
class Anywhere final : public vpmu::GuestEnv {
 public:
  vpmu::AccessResult read_linear(vpmu::GuestLinear, std::span<std::byte> out) override {
    // A DS area with room: base and index are equal; absolute maximum and threshold are far away.
    constexpr std::array<std::uint64_t, 8> area{0x1000, 0x1000, 0x9000, 0x9000};
    std::ranges::copy(std::as_bytes(std::span{area}).first(out.size()), out.begin());
    return {};
  }
  vpmu::AccessResult write_linear(vpmu::GuestLinear, std::span<const std::byte>) override { return {}; }
  vpmu::AccessResult probe_linear(vpmu::GuestLinear, std::uint64_t, vpmu::AccessKind) override { return {}; }
  std::uint64_t tsc() override { return 0; }
  void request_pmi() override {}
  void inject_page_fault(const vpmu::AccessFault&) override {}
};

// Every precise event that overflows by the clock must get its record. Otherwise walks would follow each other, and the
// guest would crawl.
TEST(StateOutcome, EveryPreciseEventGetsItsRecord) {
  struct Case {
    std::uint16_t event;
    Retirement instruction;
  };
  Retirement memory = load_and_store();
  memory.load.locked = memory.load.split = memory.store.split = true;
  Retirement call = memory;
  call.branch = {.kind = BranchKind::near_rel_call, .taken = true};
  Retirement jcc = memory;
  jcc.branch = {.kind = BranchKind::conditional, .taken = true};
  Retirement ret = memory;
  ret.branch = {.kind = BranchKind::near_ret, .taken = true};
  const std::vector<Case> cases{
      {0x81D0, memory}, {0x82D0, memory}, {0x11D0, memory}, {0x12D0, memory}, {0x21D0, memory}, {0x41D0, memory},
      {0x42D0, memory}, {0x01D1, memory}, {0x02D1, memory}, {0x04D1, memory}, {0x08D1, memory}, {0x10D1, memory},
      {0x20D1, memory}, {0x40D1, memory}, {0x01C4, jcc},    {0x02C4, call},   {0x08C4, ret},    {0x20C4, jcc},
      {0x04C4, jcc},    {0x01C5, jcc},    {0x02C5, call},   {0x20C5, jcc},    {0x04C5, jcc},    {0x00C0, memory}};
  for (const Case& c : cases) {
    Anywhere env;
    vpmu::Pmu pmu{{}};
    const vpmu::PebsRegisters registers{};
    const auto write = [&](vpmu::MsrIndex index, std::uint64_t value) {
      ASSERT_EQ(pmu.wrmsr(index, value), vpmu::MsrStatus::ok);
    };
    write(vpmu::msr::IA32_PERFEVTSEL0, 0x43'0000U | c.event);
    write(vpmu::msr::IA32_PEBS_ENABLE, 1);
    write(vpmu::msr::IA32_A_PMC0, vpmu::low_bits(48));
    pmu.settle({.value = {1}}, env);
    ASSERT_TRUE(pmu.plan().any_armed()) << std::hex << c.event;
    Retirement r = c.instruction;
    r.registers = &registers;
    EXPECT_TRUE(goal_of(pmu.plan()).any || goal_of(pmu.plan()).load || goal_of(pmu.plan()).locked_load ||
                goal_of(pmu.plan()).store || goal_of(pmu.plan()).branches.has(r.branch.kind))
        << std::hex << c.event;
    state_outcome(pmu.plan(), r);
    pmu.retire(r, env);
    EXPECT_EQ(pmu.statistics().records_written, 1U) << std::hex << c.event;
  }
}

}  // namespace
}  // namespace vmm::test
