#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "kvm/kick.hpp"
#include "perf/host_counter.hpp"
#include "perf/linux_perf_host.hpp"
#include "perf/perf_host.hpp"

// The real perf_event_open, with the software events that every Linux has. No host PMU is needed. If perf is not
// allowed here, each test says so and is skipped.

namespace vmm::test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr HostEvent cpu_clock{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK},
    task_clock{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK};

class LinuxPerfHost : public testing::TestWithParam<HostEvent> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(install_kick_handler());
    auto opened = host_->open(spec());
    if (!opened && (opened.error().system_errno == EACCES || opened.error().system_errno == EPERM))
      GTEST_SKIP() << "cannot run here: " << describe(opened.error());
    ASSERT_TRUE(opened) << describe(opened.error());
    event_ = std::move(*opened);
  }
  [[nodiscard]] static PerfEventSpec spec() { return {.event = GetParam(), .usr = true}; }
  /// On an idle CPU a loop of this many iterations takes a few milliseconds.
  static constexpr std::uint64_t iterations = 20'000'000;
  PerfReading read() {
    const auto reading = event_->read();
    EXPECT_TRUE(reading);
    return reading.value_or(PerfReading{});
  }

  std::unique_ptr<PerfHost> host_{make_linux_perf_host()};
  std::unique_ptr<PerfEvent> event_;
};

TEST_P(LinuxPerfHost, CountsWhileEnabledOnly) {
  host_->run_loop(iterations / 10);
  EXPECT_EQ(read().value, 0U) << "opened disabled";
  ASSERT_TRUE(event_->enable());
  const auto begin = Clock::now();
  host_->run_loop(iterations);
  const std::uint64_t wall = static_cast<std::uint64_t>(std::chrono::nanoseconds{Clock::now() - begin}.count());
  ASSERT_TRUE(event_->disable());
  const PerfReading counted = read();
  EXPECT_GT(counted.value, 0U);
  EXPECT_LE(counted.value, wall + 5'000'000) << "nanoseconds";
  EXPECT_EQ(counted.enabled_ns, counted.running_ns) << "a software event has its counter always";
  host_->run_loop(iterations / 10);
  EXPECT_EQ(read().value, counted.value);
}

TEST_P(LinuxPerfHost, KicksThisThreadAfterItsPeriodAndAgain) {
  ASSERT_TRUE(event_->enable());
  EXPECT_FALSE(host_->run_loop_until_kicked(iterations / 10)) << "no period was set";
  for (int n = 0; n < 2; ++n) {
    const PerfReading before = read();
    ASSERT_TRUE(event_->set_period(1'000'000));
    EXPECT_TRUE(host_->run_loop_until_kicked(100 * iterations));
    EXPECT_GE(read().value - before.value, 900'000U);
  }
  EXPECT_TRUE(host_->run_loop_until_kicked(100 * iterations)) << "the period goes on by itself";
  ASSERT_TRUE(event_->set_period(no_period));
  EXPECT_FALSE(host_->run_loop_until_kicked(iterations / 10)) << "a new period holds at once";
}

TEST_P(LinuxPerfHost, KickReachesTheFlagOfTheVcpuAround) {
  volatile std::uint8_t outer = 0;
  const KickTarget target{&outer};
  ASSERT_TRUE(event_->enable());
  ASSERT_TRUE(event_->set_period(1'000'000));
  EXPECT_TRUE(host_->run_loop_until_kicked(100 * iterations));
  EXPECT_EQ(outer, kick_mark) << "a kick that came meanwhile may be somebody else's";
}

// When a clock event ticks, the CPU is in the loop, in user mode. An event that excludes user mode must not overflow
// there.
TEST_P(LinuxPerfHost, ExcludedLevelDoesNotOverflow) {
  auto kernel = host_->open({.event = GetParam(), .os = true});
  if (!kernel && kernel.error().system_errno == EACCES) GTEST_SKIP() << "cannot run here: " << describe(kernel.error());
  ASSERT_TRUE(kernel) << describe(kernel.error());
  constexpr std::uint64_t period = 500'000;
  ASSERT_TRUE((*kernel)->enable());
  ASSERT_TRUE((*kernel)->set_period(period));
  std::uint64_t kicks = 0;
  for (int n = 0; n < 400; ++n) kicks += host_->run_loop_until_kicked(iterations / 20) ? 1U : 0U;
  const auto time = (*kernel)->read();
  ASSERT_TRUE(time);
  EXPECT_GT(time->value / period, 100U) << "time went on";
  EXPECT_LT(kicks, time->value / period / 4);
}

TEST_P(LinuxPerfHost, HostCounterHandsOutInPieces) {
  auto counter = HostCounter::open(*host_, spec());
  ASSERT_TRUE(counter);
  ASSERT_TRUE(counter->start());
  std::uint64_t sum = 0;
  for (int n = 0; n < 5; ++n) {
    host_->run_loop(iterations / 10);
    const auto taken = counter->take();
    ASSERT_TRUE(taken);
    EXPECT_GT(taken->events, 0U);
    EXPECT_EQ(taken->guessed, 0U);
    sum += taken->events;
  }
  ASSERT_TRUE(counter->kick_after(1'000'000));
  EXPECT_TRUE(host_->run_loop_until_kicked(100 * iterations));
  ASSERT_TRUE(counter->stop());
  EXPECT_GT(sum, 0U);
}

TEST_P(LinuxPerfHost, EventThatDoesNotExistIsRefusedWithItsErrno) {
  const auto opened = host_->open({.event = {PERF_TYPE_SOFTWARE, 0xFFFF}, .usr = true});
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().system_errno, 0);
  EXPECT_FALSE(opened.error().advice.empty());
}

INSTANTIATE_TEST_SUITE_P(Perf, LinuxPerfHost, testing::Values(cpu_clock, task_clock),
                         [](const auto& tested) { return tested.param == cpu_clock ? "cpu_clock" : "task_clock"; });

// Compares the whole structure: no other test would notice an event that is pinned, or that counts the host.
TEST(PerfAttributes, SayWhatIsCounted) {
  perf_event_attr expected{};
  expected.size = sizeof expected;
  expected.type = PERF_TYPE_RAW;
  expected.config = 0x81D0;
  expected.sample_period = 1ULL << 46;
  expected.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  expected.disabled = 1;
  expected.exclude_hv = 1;
  for (const bool guest : {false, true})
    for (const bool usr : {false, true})
      for (const bool os : {false, true}) {
        expected.exclude_user = !usr;
        expected.exclude_kernel = !os;
        expected.exclude_host = guest;
        expected.exclude_guest = !guest;
        const perf_event_attr attr =
            attributes_of({.event = {PERF_TYPE_RAW, 0x81D0}, .usr = usr, .os = os, .guest_only = guest});
        EXPECT_EQ(std::memcmp(&attr, &expected, sizeof attr), 0) << guest << usr << os;
        EXPECT_EQ(attr.pinned, 0U);
        EXPECT_EQ(attr.inherit, 0U);
      }
}

/// Counts, by single-steps, of a child that runs the loop.
struct Steps {
  long instructions{};
  long branches{};
};
Steps step_through_loop(PerfHost& host, std::uint64_t iterations) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    host.run_loop(iterations);
    ::_exit(0);
  }
  Steps steps;
  int status = 0;
  while (::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    ++steps.instructions;
    user_regs_struct regs{};
    ::ptrace(PTRACE_GETREGS, child, nullptr, &regs);
    constexpr long jne_rel8 = 0x75;
    if ((::ptrace(PTRACE_PEEKTEXT, child, regs.rip, nullptr) & 0xFF) == jne_rel8) ++steps.branches;
    ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
  }
  return steps;
}

// If the loop's length were not as declared, every calibration would be wrong.
TEST(LinuxPerfLoop, IsAsLongAsItSays) {
  const auto host = make_linux_perf_host();
  const Steps few = step_through_loop(*host, 10);
  const Steps many = step_through_loop(*host, 110);
  EXPECT_EQ(many.instructions - few.instructions, 100L * static_cast<long>(PerfHost::loop_instructions));
  EXPECT_EQ(many.branches - few.branches, 100L * static_cast<long>(PerfHost::loop_branches));
}

}  // namespace
}  // namespace vmm::test
