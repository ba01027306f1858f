#include "vcpu/kick_watch.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace vmm::test {
namespace {

using namespace std::chrono_literals;

TEST(KickWatch, AKickThatIsLookedAtInTimeIsNotLate) {
  KickWatch watch;
  watch.looked();
  EXPECT_EQ(watch.late().max, 0ns) << "nobody has kicked";
  watch.kicked();
  watch.looked();
  EXPECT_GT(watch.late().max, 0ns);
}

TEST(KickWatch, ALateKickIsCountedOnceAndAlreadyWhileItWaits) {
  KickWatch watch;
  watch.kicked();
  std::this_thread::sleep_for(KickWatch::in_time() + 5ms);
  watch.kicked();  // the delay is counted from the first kick
  EXPECT_EQ(watch.late().kicks, 1U);
  EXPECT_GT(watch.late().max, KickWatch::in_time());
  watch.looked();
  const auto after = watch.late();
  EXPECT_EQ(after.kicks, 1U);
  std::this_thread::sleep_for(5ms);
  watch.looked();
  EXPECT_EQ(watch.late().kicks, 1U);
  EXPECT_EQ(watch.late().max, after.max) << "nothing waits any more";
}

TEST(KickWatch, WhatWaitedForSomethingElseIsForgotten) {
  KickWatch watch;
  watch.kicked();
  std::this_thread::sleep_for(KickWatch::in_time() + 5ms);
  watch.forget();
  watch.looked();
  EXPECT_EQ(watch.late().kicks, 0U);
  EXPECT_EQ(watch.late().max, 0ns);
}

}  // namespace
}  // namespace vmm::test
