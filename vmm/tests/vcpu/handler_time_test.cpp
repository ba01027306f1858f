#include "vcpu/handler_time.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "fakes/fake_port.hpp"

namespace vmm::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t offset = 1ULL << 40;

class HandlerTimeOf : public testing::Test {
 protected:
  HandlerTimeOf() { port_.tsc_shift = offset; }
  /// The guest ran, and the VMM then spent some time on its exit.
  void exit_once(HandlerTime& time) {
    time.after_run();
    std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(time.before_run());
  }
  FakePort port_;
  HandlerTime time_{port_, HandlerClock::hidden};
};

TEST_F(HandlerTimeOf, NothingIsTouchedOutsideAHandler) {
  for (int n = 0; n < 3; ++n) exit_once(time_);
  EXPECT_TRUE(port_.calls.empty());
  EXPECT_EQ(time_.statistics().windows, 0U);
}

TEST_F(HandlerTimeOf, EachExitOfAHandlerSetsTheClockBackByItsTime) {
  time_.begin();
  ASSERT_TRUE(time_.before_run());
  std::uint64_t last = offset;
  for (int n = 0; n < 3; ++n) {
    exit_once(time_);
    ASSERT_TRUE(port_.tsc_shift);
    EXPECT_LT(*port_.tsc_shift, last);
    last = *port_.tsc_shift;
  }
  EXPECT_EQ(time_.statistics().windows, 1U);
}

TEST_F(HandlerTimeOf, AllIsGivenBackAtTheFirstExitBehindTheHandler) {
  time_.begin();
  ASSERT_TRUE(time_.before_run());
  exit_once(time_);
  time_.after_run();
  time_.end();
  ASSERT_TRUE(time_.before_run());
  EXPECT_LT(*port_.tsc_shift, offset) << "the restart itself belongs to the handler";
  const std::uint64_t hidden = offset - *port_.tsc_shift;
  exit_once(time_);
  EXPECT_EQ(*port_.tsc_shift, offset);
  EXPECT_EQ(time_.statistics().hidden_ticks, hidden);
  port_.calls.clear();
  exit_once(time_);
  EXPECT_TRUE(port_.calls.empty());
}

TEST_F(HandlerTimeOf, NextHandlerGoesOnWhereTheLastHasNotBeenGivenBack) {
  time_.begin();
  ASSERT_TRUE(time_.before_run());
  exit_once(time_);
  time_.end();
  exit_once(time_);
  const std::uint64_t after_first = *port_.tsc_shift;
  time_.begin();
  exit_once(time_);
  EXPECT_LT(*port_.tsc_shift, after_first) << "never forwards inside a handler";
  time_.end();
  exit_once(time_);
  exit_once(time_);
  EXPECT_EQ(*port_.tsc_shift, offset);
}

// A guest that never starts its counters again must get its time back.
TEST_F(HandlerTimeOf, HandlerThatNeverEndsIsNotHiddenForEver) {
  time_.begin();
  ASSERT_TRUE(time_.before_run());
  for (int n = 0; n < 300; ++n) {
    time_.after_run();
    ASSERT_TRUE(time_.before_run());
  }
  EXPECT_EQ(*port_.tsc_shift, offset);
}

TEST_F(HandlerTimeOf, RealClockIsLeftAlone) {
  HandlerTime real{port_, HandlerClock::real};
  real.begin();
  exit_once(real);
  exit_once(real);
  EXPECT_TRUE(port_.calls.empty());
}

TEST_F(HandlerTimeOf, PortWithoutAnOffsetKeepsTheRealClock) {
  port_.tsc_shift.reset();
  time_.begin();
  exit_once(time_);
  exit_once(time_);
  time_.begin();
  EXPECT_EQ(port_.count("tsc_offset"), 1U) << "asked once";
  EXPECT_EQ(port_.count("set_tsc_offset"), 0U);
}

}  // namespace
}  // namespace vmm::test
