#include "pmu/task_counts.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

// A command's tasks are told from the others of a Linux guest by the stacks that its kernel switches to.

namespace vmm::test {
namespace {

using vpmu::GuestLinear;
constexpr std::uint64_t user_instructions = 0x1'00C0, stack_page = 0xFFFF'C900'0001'0000;
constexpr std::uint64_t program_cs = 0x33;
/// Where RSP is of a task that has been there before: somewhere in its stack.
constexpr std::uint64_t used_stack = stack_page + 0x800;
enum Task : std::uint64_t { command = 0x1000, other = 0x2000, child = 0x3000 };

/// The page of a stack; nothing else is mapped.
class OneStack final : public vpmu::GuestEnv {
 public:
  void poke(std::uint64_t at, std::uint64_t word) { std::memcpy(&page_[at - stack_page], &word, sizeof word); }
  vpmu::AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    const std::uint64_t offset = at.value() - stack_page;
    if (offset >= vpmu::page_size || out.size() > vpmu::page_size - offset) return vpmu::AccessFault{.address = at};
    std::memcpy(out.data(), &page_[offset], out.size());
    return {};
  }
  vpmu::AccessResult write_linear(GuestLinear /*at*/, std::span<const std::byte> /*in*/) override { return refused(); }
  vpmu::AccessResult probe_linear(GuestLinear /*at*/, std::uint64_t /*size*/, vpmu::AccessKind /*kind*/) override {
    return refused();
  }
  std::uint64_t tsc() override { return 0; }
  void request_pmi() override { ADD_FAILURE() << "nobody has asked for a PMI"; }

 private:
  static vpmu::AccessResult refused() {
    ADD_FAILURE() << "the guest's memory is only read";
    return {};
  }
  std::array<std::byte, vpmu::page_size> page_{};
};

class TaskCountsOf : public testing::Test {
 protected:
  TaskCountsOf() {
    counts_.kick_by([this] { ++kicks_; });
  }
  static vpmu::PmuConfig config() { return {.generation = vpmu::Generation::skylake}; }
  /// One instruction retires, by default a program's.
  void retire(TaskCounter& on, vpmu::BranchKind branch = {}, unsigned cpl = 3) {
    vpmu::Retirement retired{};
    retired.cpl = static_cast<std::uint8_t>(cpl);
    retired.branch.kind = branch;
    on.retire(retired);
  }
  void retire(TaskCounter& on, unsigned times) {
    for (unsigned n = 0; n < times; ++n) retire(on);
  }
  /// The command begins on that CPU.
  void begin(TaskCounter& on) {
    counts_.mark(&on == &first_ ? 0 : 1);
    for (TaskCounter* counter : {&first_, &second_}) {
      EXPECT_TRUE(counter->is_marked());
      EXPECT_EQ(counter->take_mark().size(), 1U);
      EXPECT_FALSE(counter->is_marked());
    }
    retire(on, 3);
    retire(on, vpmu::BranchKind::far);
  }
  /// The end of the stack of a task that has not run yet.
  std::uint64_t new_stack(std::uint64_t cs, std::uint64_t padding = 0) {
    constexpr std::uint64_t registers = 21 * 8, frame = 7 * 8, cs_at = 17 * 8;
    const std::uint64_t at = stack_page + vpmu::page_size - padding - registers - frame;
    env_.poke(at + frame + cs_at, cs);
    return at;
  }
  std::uint64_t counted() { return counts_.totals().events.front(); }

  OneStack env_;
  TaskCounts counts_{{{.select = user_instructions, .offcore = {}, .frontend = {}}}};
  TaskCounter first_{counts_, 0, config(), env_}, second_{counts_, 1, config(), env_};
  unsigned kicks_{};
};

TEST_F(TaskCountsOf, NothingBeforeTheSystemCallThatFollowsTheMark) {
  retire(first_, 5);
  first_.switched({.from = command, .to = other, .stack = used_stack});
  begin(first_);
  EXPECT_EQ(kicks_, 1U);
  retire(first_, vpmu::BranchKind::far, 0);
  retire(first_, 7);
  first_.switched({.from = command, .to = other, .stack = used_stack});
  retire(first_, 9);
  EXPECT_EQ(counted(), 7U);
  EXPECT_EQ(counts_.totals().switches, 1U);
  EXPECT_EQ(counts_.totals().all_switches, 1U);
}

TEST_F(TaskCountsOf, GoOnWhereTheTaskDoesOnAnyCpu) {
  begin(first_);
  first_.switched({.from = command, .to = other, .stack = used_stack});
  second_.switched({.from = other, .to = command, .stack = used_stack});
  retire(first_, 100);
  retire(second_, 5);
  second_.switched({.from = command, .to = other, .stack = used_stack});
  second_.switched({.from = other, .to = command, .stack = used_stack});
  retire(second_, 2);
  second_.switched({.from = command, .to = other, .stack = used_stack});
  EXPECT_EQ(counted(), 7U);
  EXPECT_EQ(counts_.totals().migrations, 1U);
  EXPECT_EQ(counts_.totals().switches, 3U);
}

TEST_F(TaskCountsOf, TakeInWhatProgramsMake) {
  for (const std::uint64_t padding : {0U, 16U}) {
    begin(first_);
    first_.switched({.from = command, .to = child, .stack = new_stack(program_cs, padding)});
    retire(first_, 4);
    first_.switched({.from = child, .to = other, .stack = used_stack});
    retire(first_, 50);
    first_.switched({.from = other, .to = child, .stack = used_stack});
    retire(first_, 3);
    first_.switched({.from = child, .to = other, .stack = used_stack});
    EXPECT_EQ(counted(), 7U) << padding;
    EXPECT_EQ(counts_.totals().migrations, 0U) << "a new task has been nowhere before";
  }
}

TEST_F(TaskCountsOf, LeaveOutTheKernelsThreads) {
  begin(first_);
  first_.switched({.from = command, .to = child, .stack = new_stack(0)});
  retire(first_, 4);
  first_.switched({.from = child, .to = other, .stack = used_stack});
  EXPECT_EQ(counted(), 0U);
  EXPECT_EQ(counts_.totals().switches, 1U);
}

// Linux gives the memory of a task that has ended to the next one.
TEST_F(TaskCountsOf, KnowANewTaskAtTheAddressOfAnOldOne) {
  begin(first_);
  first_.switched({.from = command, .to = child, .stack = new_stack(program_cs)});
  retire(first_, 4);
  first_.switched({.from = child, .to = other, .stack = used_stack});
  first_.switched({.from = other, .to = child, .stack = new_stack(0)});
  retire(first_, 50);
  first_.switched({.from = child, .to = command, .stack = used_stack});
  retire(first_, 1);
  first_.switched({.from = command, .to = child, .stack = used_stack});
  retire(first_, 50);
  first_.switched({.from = child, .to = other, .stack = used_stack});
  EXPECT_EQ(counted(), 5U);
}

// A stack may be anywhere, also where nothing can be read.
TEST_F(TaskCountsOf, TakeNoStackThatCannotBeRead) {
  begin(first_);
  const std::uint64_t nowhere = 0x8000'0000'0000'1000 - 21 * 8 - 7 * 8;
  first_.switched({.from = command, .to = child, .stack = nowhere});
  retire(first_, 4);
  first_.switched({.from = child, .to = ~0ULL, .stack = ~0ULL});
  EXPECT_EQ(counted(), 0U);
}

TEST_F(TaskCountsOf, SayHowManyTasksThereAreTooMany) {
  begin(first_);
  const std::uint64_t stack = new_stack(program_cs);
  for (std::uint64_t n = 0; n < TaskCounts::max_tasks + 2; ++n)
    first_.switched({.from = 0x10'0000 + n, .to = 0x10'0001 + n, .stack = stack});
  EXPECT_GT(counts_.totals().lost_tasks, 0U);
}

TEST_F(TaskCountsOf, BeginAnewWithAnotherMark) {
  begin(first_);
  retire(first_, 4);
  begin(second_);
  retire(second_, 2);
  retire(first_, 4);
  second_.switched({.from = command, .to = other, .stack = used_stack});
  EXPECT_EQ(counted(), 2U);
}

using Kind = ClientRequest::Kind;

TEST_F(TaskCountsOf, AreThoseOfRegionsThatAreInEachOther) {
  begin(first_);
  first_.requested({.kind = Kind::begin_region, .label = "outer"});
  retire(first_, 2);
  first_.requested({.kind = Kind::begin_region, .label = "inner"});
  retire(first_, 3);
  first_.switched({.from = command, .to = child, .stack = new_stack(program_cs)});
  retire(first_, 50);  // another thread is in no region
  first_.requested({.kind = Kind::end_region, .label = {}});
  first_.switched({.from = child, .to = command, .stack = used_stack});
  retire(first_, 4);
  first_.requested({.kind = Kind::end_region, .label = {}});
  retire(first_, 5);
  first_.requested({.kind = Kind::end_region, .label = {}});
  retire(first_, 6);
  first_.requested({.kind = Kind::begin_region, .label = "inner"});
  first_.requested({.kind = Kind::begin_region, .label = "inner"});
  retire(first_, 7);
  first_.switched({.from = command, .to = other, .stack = used_stack});
  const TaskTotals& totals = counts_.totals();
  ASSERT_EQ(totals.regions.size(), 2U);
  EXPECT_EQ(totals.regions[0].events.front(), 2U + 3 + 4 + 5);
  EXPECT_EQ(totals.regions[1].label, "inner");
  EXPECT_EQ(totals.regions[1].times, 3U);
  EXPECT_EQ(totals.regions[1].events.front(), 3U + 4 + 7) << "one in itself counts once";
  EXPECT_EQ(counted(), 2U + 3 + 50 + 4 + 5 + 6 + 7) << "of all";
}

// Valgrind manual, chapter 6.5.
TEST_F(TaskCountsOf, AreThoseThatCallgrindsRequestsAskFor) {
  begin(first_);
  const auto ask = [this](Kind kind, const char* label = "") { first_.requested({.kind = kind, .label = label}); };
  retire(first_, 1);
  ask(Kind::dump_stats, "start");
  retire(first_, 2);
  ask(Kind::zero_stats);
  retire(first_, 4);
  ask(Kind::toggle_collect);
  retire(first_, 8);
  ask(Kind::toggle_collect);
  retire(first_, 16);
  ask(Kind::stop_instrumentation);
  retire(first_, 32);
  ask(Kind::dump_stats, "middle");
  retire(first_, 64);
  ask(Kind::start_instrumentation);
  retire(first_, 128);
  ask(Kind::dump_stats, "middle");
  const TaskTotals& totals = counts_.totals();
  ASSERT_EQ(totals.regions.size(), 2U);
  EXPECT_EQ(totals.regions[0].events.front(), 1U);
  EXPECT_EQ(totals.regions[1].events.front(), 4U + 16 + 128);
  EXPECT_EQ(totals.regions[1].times, 2U);
}

TEST_F(TaskCountsOf, SayHowManyRegionsThereAreTooMany) {
  begin(first_);
  for (unsigned n = 0; n < TaskCounts::max_regions + 3; ++n)
    first_.requested({.kind = Kind::dump_stats, .label = std::to_string(n)});
  for (unsigned n = 0; n < TaskCounts::max_depth + 4; ++n) first_.requested({.kind = Kind::begin_region, .label = "0"});
  EXPECT_EQ(counts_.totals().regions.size(), TaskCounts::max_regions);
  EXPECT_EQ(counts_.totals().lost_regions, 3U + 4);
  second_.requested({.kind = Kind::dump_stats, .label = "of nobody"});
  EXPECT_EQ(counts_.totals().lost_regions, 3U + 4);
}

TEST_F(TaskCountsOf, UseAsManyPmusAsTheEventsNeed) {
  std::vector<TaskEvent> events;
  for (std::uint64_t umask = 0; umask < 40; ++umask)
    events.push_back({.select = user_instructions | (umask % 2) << 17U, .offcore = {}, .frontend = {}});
  events.push_back({.select = 0x1'0000, .offcore = {}, .frontend = {}});
  for (const std::uint64_t response : {0x10001U, 0x10002U})
    events.push_back({.select = 0x1'01B7, .offcore = response, .frontend = {}});
  for (const vpmu::GenerationDesc* const generation : vpmu::all_generations()) {
    TaskCounts counts{events};
    {
      TaskCounter counter{counts, 0, {.generation = generation->generation}, env_};
      counts.mark(0);
      const auto plans = counter.take_mark();
      std::size_t active = 0;
      for (const vpmu::CountPlan& plan : plans) active += plan.size;
      EXPECT_EQ(active, events.size()) << generation->name;
      retire(counter, vpmu::BranchKind::far);
      retire(counter, 11);
      counter.switched({.from = command, .to = other, .stack = used_stack});
    }
    for (std::size_t n = 0; n < 40; ++n) EXPECT_EQ(counts.totals().events[n], 11U) << generation->name << ' ' << n;
  }
}

}  // namespace
}  // namespace vmm::test
