#include "attach/run_gate.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "kvm/kick.hpp"

namespace vmm {
namespace {

TEST(RunGate, ChangesWithNobodyInsideAtOnce) {
  unsigned asked = 0, changes = 0;
  RunGate gate{[&] {
    ++asked;
    return false;
  }};
  gate.with_nobody_inside([&] { ++changes; });
  EXPECT_EQ(changes, 1U);
  EXPECT_EQ(asked, 1U);
}

TEST(RunGate, APlaceTellsTheThreadThatIsInside) {
  constexpr pid_t thread = 4711;
  RunGate gate{[] { return false; }};
  RunGate::ThreadInside thread_inside{};
  {
    const RunGate::Inside here{gate, thread_inside, thread};
    EXPECT_EQ(thread_inside, thread);
  }
  EXPECT_EQ(thread_inside, 0);
}

// A kick goes to the thread on which a vCPU is inside. With its parent's id, a vCPU of a forked child would never be
// kicked.
TEST(RunGate, AForkedThreadHasItsOwnNumber) {
  ASSERT_EQ(this_thread(), ::gettid());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(this_thread() == ::gettid() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Two vCPUs that only leave the guest when they are kicked, and enter it again at once; one of them misses the first
// kick of each change.
TEST(RunGate, KicksThoseInsideUntilTheyComeOut) {
  std::array<std::atomic<int>, 2> kicked{};
  std::array<RunGate::ThreadInside, 2> threads_inside{};
  std::atomic<bool> stop{};
  std::atomic<int> inside{};
  RunGate gate{[&] {
    bool any = false;
    for (unsigned id = 0; id < 2; ++id) {
      if (threads_inside[id] == 0) continue;
      ++kicked[id];
      any = true;
    }
    return any;
  }};
  const auto vcpu = [&](unsigned id, int overlooked) {
    while (!stop) {
      const RunGate::Inside here{gate, threads_inside[id], this_thread()};
      ++inside;
      kicked[id] = -overlooked;
      while (kicked[id] <= 0 && !stop) std::this_thread::yield();
      --inside;
    }
  };
  std::thread first{vcpu, 0, 0}, second{vcpu, 1, 1};
  int with_somebody = 0;
  for (int n = 0; n < 50; ++n) {
    while (inside != 2) std::this_thread::yield();
    gate.with_nobody_inside([&] { with_somebody += inside; });
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(with_somebody, 0);
}

}  // namespace
}  // namespace vmm
