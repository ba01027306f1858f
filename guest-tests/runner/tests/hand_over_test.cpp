// The cost of running one instruction by KVM and returning to the engine. Needs /dev/kvm, no PMU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <map>
#include <string>

#include "test_kernel.hpp"
#include "test_run.hpp"

namespace gt_runner {
namespace {

/// The counters of a machine that has run `name`.
std::map<std::string, std::uint64_t> counters_of(const std::string& name, bool soft = false) {
  const auto kernel = TestKernel::open(PMU_TESTS_KERNEL);
  if (!kernel) return {};
  std::map<std::string, std::uint64_t> counters;
  for (const gt_runner::Test& test : kernel->tests()) {
    if (test.name != name) continue;
    const auto result =
        run_test(*kernel, test, {.source = "exact", .soft = soft, .pmu_time = vmm::PmuTime::real, .statistics = true});
    if (!result || result->verdict != Verdict::passed) return {};
    for (const std::string& line : result->log) {
      const std::size_t space = line.find(' ');
      if (space == std::string::npos) continue;
      std::uint64_t value = 0;
      std::from_chars(line.data() + space + 1, line.data() + line.size(), value);
      counters[line.substr(0, space)] = value;
    }
  }
  return counters;
}

// The engine runs SWAPGS, so that the exchanged bases go to KVM and back each time. Vector registers are not in use,
// and the guest's clock, which would be shifted at times, is off.
TEST(KvmHandOver, TakesAtMostSixSystemCallsThereAndBack) {
  if (::access("/dev/kvm", R_OK | W_OK) != 0) GTEST_SKIP() << "no usable /dev/kvm";
  const auto counters = counters_of("GsBase.IsExchangedAcrossInstructionsLeftToOthers");
  ASSERT_TRUE(counters.contains("pmu.exact.handed_over"));
  const std::uint64_t hand_overs = counters.at("pmu.exact.handed_over");
  EXPECT_GE(hand_overs, 200U);
  std::uint64_t ioctls = 0;
  std::string listing;
  for (const auto& [counter, value] : counters) {
    if (!counter.starts_with("kvm.ioctls.")) continue;
    ioctls += value;
    listing += counter + " " + std::to_string(value) + "\n";
  }
  EXPECT_GE(ioctls, hand_overs);
  EXPECT_LE(ioctls, 6 * hand_overs) << listing;
}

// The other GS base is read two hundred times between two SWAPGS: the engine's side does all of that without KVM.
TEST(KvmHandOver, BasesAreReadWithoutIt) {
  if (::access("/dev/kvm", R_OK | W_OK) != 0) GTEST_SKIP() << "no usable /dev/kvm";
  const auto counters = counters_of("GsBase.OfTheOthersIsReadBetweenTwoExchanges");
  ASSERT_TRUE(counters.contains("pmu.exact.handed_over"));
  EXPECT_LE(counters.at("pmu.exact.handed_over"), 20U);
}

// The engine runs the loop's 2,100 instructions, although a watchpoint is set.
TEST(HandOver, LeavesOnlyWhatMeetsAGuestsBreakpoint) {
  const auto counters = counters_of("GuestDebugging.CodeBesideABreakpointIsCounted", true);
  ASSERT_TRUE(counters.contains("pmu.exact.instructions"));
  EXPECT_GE(counters.at("pmu.exact.instructions"), 4'200U);
  ASSERT_TRUE(counters.contains("pmu.exact.handed_over"));
  EXPECT_LE(counters.at("pmu.exact.handed_over"), 200U);
}

}  // namespace
}  // namespace gt_runner
