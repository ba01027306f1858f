// The exact source whose cycles a model of the pipeline tells.
#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "contract/source_rigs.hpp"
#include "model/own_part.hpp"
#include "sources/exact_source.hpp"

namespace vmm::test {
namespace {

using vpmu::CounterId;
using vpmu::Counts;

class PipelineTime : public LoopingGuest, public testing::Test {
 protected:
  explicit PipelineTime(SourceOptions options = {.time = TimeModel::pipeline})
      : source_{std::make_unique<FakeTimer>(time),
                guest.breakpoints,
                guest.view,
                guest.memory,
                vpmu::describe(vpmu::Generation::skylake),
                options} {
    guest.backend.can.hides_time = true;
  }
  void count(std::uint64_t distance, bool precise = false) {
    vpmu::CountPlan plan;
    plan.size = 2;
    plan.entries[0] = {.counter = CounterId::gp(0),
                       .counts = Counts::cycles,
                       .usr = true,
                       .os = true,
                       .distance = distance,
                       .precise = precise};
    plan.entries[1] = {
        .counter = CounterId::gp(1), .counts = Counts::instructions, .usr = true, .os = true, .distance = 1ULL << 48};
    ASSERT_TRUE(source_.program(plan));
  }
  /// Counts these kinds, each from `distance` before its overflow, and instructions with the last counter.
  void count_all(std::initializer_list<Counts> kinds, std::uint64_t distance = 1ULL << 48) {
    vpmu::CountPlan plan;
    for (const Counts counts : kinds) {
      plan.entries[plan.size] = {
          .counter = CounterId::gp(plan.size), .counts = counts, .usr = true, .os = true, .distance = distance};
      ++plan.size;
    }
    last_ = CounterId::gp(plan.size);
    plan.entries[plan.size++] = {
        .counter = last_, .counts = Counts::instructions, .usr = true, .os = true, .distance = 1ULL << 48};
    ASSERT_TRUE(source_.program(plan));
    counted_ = {};
  }
  /// Runs once, and adds what was counted.
  void run_once() {
    const auto end = source_.run(guest.backend, std::nullopt);
    ASSERT_TRUE(end);
    const auto deltas = source_.sync(guest.backend);
    ASSERT_TRUE(deltas);
    for (unsigned i = 0; i < counted_.size(); ++i) counted_.at(i) += (*deltas)[CounterId::gp(i)];
    if (!end->retired) return;
    EXPECT_TRUE(end->retired->what.has_pipeline);
    counted_.at(last_.number()) += end->retired->what.instructions();
  }
  [[nodiscard]] std::uint64_t instructions_counted() const { return counted_.at(last_.number()); }

  /// Runs until one instruction is observed, or so many have passed.
  void run(std::uint64_t instructions) {
    observed_.reset();
    for (const std::uint64_t end = instructions_ + instructions; instructions_ < end && !observed_;) {
      const auto end_of_run = source_.run(guest.backend, std::nullopt);
      ASSERT_TRUE(end_of_run);
      const auto deltas = source_.sync(guest.backend);
      ASSERT_TRUE(deltas);
      before_ = cycles_ + (*deltas)[CounterId::gp(0)];
      cycles_ = before_;
      instructions_ += (*deltas)[CounterId::gp(1)];
      if (!end_of_run->retired) continue;
      observed_ = end_of_run->retired->what;
      cycles_ += observed_->cycles;
      instructions_ += observed_->instructions();
    }
  }

  ExactSource source_;
  std::array<std::uint64_t, vpmu::max_gp_counters> counted_{};
  CounterId last_{CounterId::gp(0)};
  std::uint64_t cycles_{}, instructions_{};
  std::uint64_t before_{};  ///< Cycles before the instruction that was observed retired.
  std::optional<vpmu::Retirement> observed_;
};

// A loop of eight instructions, four of which a Skylake issues in a cycle. 248966, chapter 2.
TEST_F(PipelineTime, CountsTheCyclesOfTheCore) {
  ASSERT_NO_FATAL_FAILURE(count(1ULL << 48));
  ASSERT_NO_FATAL_FAILURE(run(100'000));
  EXPECT_NEAR(static_cast<double>(cycles_) / static_cast<double>(instructions_), 2.0 / 8, 0.05);
  EXPECT_EQ(cycles_, guest.backend.passed + cpu.retired) << "the guest's clock passes as its core does";
}

// Each of the loop's instructions is one micro-op, no-ops among them, which do not execute.
TEST_F(PipelineTime, CountsMicroOpsOfThePipeline) {
  ASSERT_NO_FATAL_FAILURE(
      count_all({Counts::uops_issued, Counts::uops_retired, Counts::slots_retired, Counts::uops_executed}));
  while (instructions_counted() < 100'000) ASSERT_NO_FATAL_FAILURE(run_once());
  const std::uint64_t in_engine = instructions_counted() - cpu.retired;
  for (unsigned i = 0; i < 3; ++i)
    EXPECT_NEAR(static_cast<double>(counted_.at(i)), static_cast<double>(in_engine), 64) << i;
  EXPECT_NEAR(static_cast<double>(counted_.at(3)), static_cast<double>(in_engine) * 2 / 8, 64)
      << "the load and the jump";
}

// Level 1 of top-down analysis: the slots of four micro-ops a cycle, each of one kind. 248966, appendix B.
TEST_F(PipelineTime, SlotsAreOfOneKindEach) {
  ASSERT_NO_FATAL_FAILURE(count_all({Counts::cycles, Counts::slots_retired, Counts::uops_issued,
                                     Counts::slots_not_delivered, Counts::recovery_cycles}));
  while (instructions_counted() < 100'000) ASSERT_NO_FATAL_FAILURE(run_once());
  const auto [cycles, retired, issued, not_delivered, recovery] =
      std::tuple{counted_.at(0), counted_.at(1), counted_.at(2), counted_.at(3), counted_.at(4)};
  ASSERT_GE(issued, retired);
  const std::uint64_t told = issued + not_delivered + 4 * recovery;
  EXPECT_LE(told, 4 * cycles) << "the rest is the back end's";
  EXPECT_GT(retired, 4 * cycles * 95 / 100);
  EXPECT_LT(retired, 4 * cycles);
}

// Events of the pipeline come when their part of the code ends, so that an overflow may be late by a part.
TEST_F(PipelineTime, OverflowsByAPartAtMost) {
  for (const std::uint64_t distance : {1U, 50U, 3000U, 100'000U}) {
    ASSERT_NO_FATAL_FAILURE(count_all({Counts::uops_issued}, distance));
    unsigned runs = 0;
    while (counted_.at(0) < distance) {
      ASSERT_NO_FATAL_FAILURE(run_once());
      ASSERT_LT(++runs, 200'000U);
    }
    EXPECT_LE(counted_.at(0) - distance, 16U) << distance << ", of " << counted_.at(0);
  }
}

// No overflow is in what passes in bulk.
TEST_F(PipelineTime, ObservesTheInstructionThatOverflows) {
  for (const std::uint64_t distance : {1U, 2U, 3U, 7U, 50U, 300U, 1000U, 5000U}) {
    const std::uint64_t start = cycles_;
    ASSERT_NO_FATAL_FAILURE(count(distance));
    do ASSERT_NO_FATAL_FAILURE(run(1'000'000));
    while (observed_ && cycles_ < start + distance);
    ASSERT_TRUE(observed_) << distance;
    EXPECT_GE(cycles_, start + distance);
    EXPECT_LE(observed_->cycles, 1U) << "what it waited for comes before it";
  }
}

SourceOptions changed_time(std::string_view set) {
  SourceOptions options{.time = TimeModel::pipeline};
  EXPECT_TRUE(add_changes(set, options.changes));
  return options;
}

class FasterCore : public PipelineTime {
 protected:
  FasterCore() : PipelineTime{changed_time("mhz=3000")} {}
};

// SDM 3B 18.2.3: the TSC, and CPU_CLK_UNHALTED.REF_TSC with it, is as fast at any frequency of the core.
TEST_F(FasterCore, LetsTheTscRunAtItsOwnRate) {
  ASSERT_EQ(guest.backend.tsc_khz(), 1'000'000U);
  ASSERT_NO_FATAL_FAILURE(count_all({Counts::cycles, Counts::ref_cycles}));
  while (instructions_counted() < 100'000) ASSERT_NO_FATAL_FAILURE(run_once());
  const auto by_others = static_cast<double>(cpu.retired);
  EXPECT_GT(counted_.at(0), 20'000U);
  EXPECT_NEAR(static_cast<double>(counted_.at(0)) / 3, static_cast<double>(counted_.at(1)), 1 + by_others);
  EXPECT_NEAR(static_cast<double>(guest.backend.passed), static_cast<double>(counted_.at(1)), 1 + by_others);
  EXPECT_LT(by_others, 1000);
}

/// The loop's four loads come from memory each time, as their lines are flushed. Those of a round wait for the last one
/// of the round before.
class MissesInALoop : public PipelineTime {
 protected:
  explicit MissesInALoop(std::string_view set) : PipelineTime{changed_time(set)} {
    std::uint64_t at = cpu.add(flushing, X86("clflush (%rbx)"));
    at = cpu.add(at, X86("clflush 0x40(%rbx)"));
    at = cpu.add(at, X86("clflush 0x80(%rbx)"));
    at = cpu.add(at, X86("clflush 0xC0(%rbx)"));
    at = cpu.add(at, X86("mov (%rbx), %eax"));
    at = cpu.add(at, X86("mov 0x40(%rbx), %eax"));
    at = cpu.add(at, X86("mov 0x80(%rbx), %eax"));
    at = cpu.add(at, X86("mov 0xC0(%rbx), %eax"));
    at = cpu.add(at, X86("and $0, %eax"));
    at = cpu.add(at, X86("add %rax, %rbx"));
    cpu.add_jump(at, flushing);
    guest.backend.registers.rip = flushing;
  }
  static constexpr std::uint64_t flushing = code + 0x800;
  double cycles_of_round() {
    constexpr std::uint64_t rounds = 1000, instructions = 11;
    count(1ULL << 48);
    while (instructions_ < instructions * rounds) run(instructions * rounds);
    return static_cast<double>(cycles_ * instructions) / static_cast<double>(instructions_);
  }
};
class NearMemory : public MissesInALoop {
 protected:
  NearMemory() : MissesInALoop{"dram=100,prefetch-off=15"} {}
};
class FarMemory : public MissesInALoop {
 protected:
  FarMemory() : MissesInALoop{"dram=400,prefetch-off=15"} {}
};
class OneFillBuffer : public MissesInALoop {
 protected:
  OneFillBuffer() : MissesInALoop{"dram=400,prefetch-off=15,fill-buffers=1"} {}
};

TEST_F(NearMemory, IsWaitedForAsLongAsIsSet) {
  const double cycles = cycles_of_round();
  EXPECT_GE(cycles, 100);
  EXPECT_LT(cycles, 200);
}
TEST_F(FarMemory, IsWaitedForAsLongAsIsSet) {
  const double cycles = cycles_of_round();
  EXPECT_GE(cycles, 400);
  EXPECT_LT(cycles, 500);
}
TEST_F(OneFillBuffer, BringsOneLineAfterTheOther) {
  const double cycles = cycles_of_round();
  EXPECT_GE(cycles, 4 * 400);
  EXPECT_LT(cycles, 4 * 500);
}

/// A loop of a compare with memory, the branch behind it, which it is fused with, and a jump.
class PairInALoop : public PipelineTime {
 protected:
  PairInALoop() {
    std::uint64_t at = cpu.add(compare, X86("cmp (%rbx), %eax"));
    at = cpu.add(at, X86("je .+2"));
    cpu.add_jump(at, compare);
    guest.backend.registers.rip = compare;
  }
  /// Counts instructions with a record of the one that overflows or, armed, of the next one.
  void record(std::uint64_t distance, bool armed) {
    vpmu::CountPlan plan;
    plan.size = 1;
    plan.entries[0] = {.counter = CounterId::gp(1),
                       .counts = Counts::instructions,
                       .usr = true,
                       .os = true,
                       .distance = distance,
                       .precise = true,
                       .armed = armed};
    ASSERT_TRUE(source_.program(plan));
  }
  static constexpr std::uint64_t compare = code + 0x100, branch = compare + 2, behind = branch + 2;
};

// Rule P2a.
TEST_F(PairInALoop, RetiresAsOne) {
  ASSERT_NO_FATAL_FAILURE(record(1ULL << 48, true));
  unsigned pairs = 0;
  for (unsigned n = 0; n < 1000; ++n) {
    const auto end = source_.run(guest.backend, std::nullopt);
    ASSERT_TRUE(end);
    if (!end->retired || end->retired->what.ip.value() != compare) continue;
    const vpmu::Retirement& r = end->retired->what;
    if (r.branch_offset == 0) continue;  // KVM ran it
    ++pairs;
    EXPECT_EQ(r.ip + r.branch_offset, vpmu::GuestLinear{branch});
    EXPECT_EQ(r.next_ip.value(), behind);
    EXPECT_EQ(end->retired->registers[vpmu::Slot::rip], behind);
    EXPECT_TRUE(r.macro_fused);
    EXPECT_EQ(r.branch.kind, vpmu::BranchKind::conditional);
    ASSERT_TRUE(r.has_load);
    EXPECT_EQ(r.load.address.value(), data);
    EXPECT_NE(r.load.latency, 0U);
  }
  EXPECT_GT(pairs, 400U);
}

// Rule D2: whichever of its instructions overflows, what is observed then is the pair.
TEST_F(PairInALoop, IsObservedAsOneWhereItOverflows) {
  unsigned pairs = 0;
  for (std::uint64_t distance = 50; distance < 56; ++distance) {
    ASSERT_NO_FATAL_FAILURE(record(distance, false));
    std::uint64_t passed = 0;
    vpmu::GuestLinear at;
    while (passed < distance) {
      const auto end = source_.run(guest.backend, std::nullopt);
      ASSERT_TRUE(end);
      const auto deltas = source_.sync(guest.backend);
      ASSERT_TRUE(deltas);
      passed += (*deltas)[CounterId::gp(1)];
      if (!end->retired) continue;
      passed += end->retired->what.instructions();
      at = end->retired->what.ip;
    }
    EXPECT_NE(at.value(), branch) << distance;
    pairs += at.value() == compare ? 1 : 0;
  }
  EXPECT_GE(pairs, 2U);
}

}  // namespace
}  // namespace vmm::test
