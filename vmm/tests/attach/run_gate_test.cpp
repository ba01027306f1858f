#include "attach/run_gate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace vmm {
namespace {

TEST(RunGate, ChangesWithNobodyInsideAtOnce) {
  unsigned kicks = 0, changes = 0;
  RunGate gate{[&] { ++kicks; }};
  gate.with_nobody_inside([&] { ++changes; });
  EXPECT_EQ(changes, 1U);
  EXPECT_EQ(kicks, 0U);
}

// Two vCPUs that only come out when they are kicked, and go in again at once; one of them overlooks the first kick of each change.
TEST(RunGate, KicksThoseInsideUntilTheyComeOut) {
  std::array<std::atomic<int>, 2> kicked{};
  std::atomic<bool> stop{};
  std::atomic<int> inside{};
  RunGate gate{[&] {
    for (auto& k : kicked) ++k;
  }};
  const auto vcpu = [&](unsigned id, int overlooked) {
    while (!stop) {
      const RunGate::Inside here{gate};
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
