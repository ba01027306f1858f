#include "vcpu/clock_group.hpp"

#include <gtest/gtest.h>

namespace vmm::test {
namespace {

class ClockGroupOfTwo : public testing::Test {
 protected:
  static constexpr std::uint64_t slack = 100;
  unsigned kicks_[2]{};
  ClockGroup group_{slack};
  unsigned first_ = group_.join([this] { ++kicks_[0]; });
  unsigned second_ = group_.join([this] { ++kicks_[1]; });
};

TEST_F(ClockGroupOfTwo, WithinTheSlackNobodyWaits) {
  group_.publish(first_, slack);
  EXPECT_EQ(group_.must_wait(second_, 0), 0U);
  EXPECT_EQ(kicks_[1], 0U);
}

TEST_F(ClockGroupOfTwo, WhoeverRanAheadIsKickedOnceAndWaitsForAllOfIt) {
  group_.publish(first_, slack + 1);
  group_.publish(first_, slack + 50);
  EXPECT_EQ(kicks_[1], 1U) << "it has been asked already";
  EXPECT_EQ(kicks_[0], 0U);
  EXPECT_EQ(group_.must_wait(second_, 0), slack + 50);
  group_.publish(second_, slack + 50);
  EXPECT_EQ(group_.must_wait(second_, slack + 50), 0U);
}

TEST_F(ClockGroupOfTwo, IsInStepUntilItIsAskedOrOthersRunAhead) {
  EXPECT_TRUE(group_.is_in_step(second_, 0));
  group_.publish(first_, slack);
  EXPECT_TRUE(group_.is_in_step(second_, 0));
  group_.publish(first_, slack + 1);
  EXPECT_FALSE(group_.is_in_step(second_, 0));
  EXPECT_FALSE(group_.is_in_step(second_, slack + 1)) << "it has been asked, and must say that it heard";
  EXPECT_EQ(group_.must_wait(second_, slack + 1), 0U);
  EXPECT_TRUE(group_.is_in_step(second_, slack + 1));
  EXPECT_FALSE(group_.is_in_step(second_, 0));
}

TEST_F(ClockGroupOfTwo, KickedAgainWhenItFallsBehindAgain) {
  group_.publish(first_, 1000);
  (void)group_.must_wait(second_, 0);
  group_.publish(second_, 1000);
  group_.publish(first_, 2000);
  EXPECT_EQ(kicks_[1], 2U);
}

// Two that both hide time lead each other in turn: neither waits for what it has hidden itself.
TEST_F(ClockGroupOfTwo, TheOneInFrontDoesNotWait) {
  group_.publish(first_, 1000);
  EXPECT_EQ(group_.must_wait(first_, 1000), 0U);
  group_.publish(second_, 1500);
  EXPECT_EQ(group_.must_wait(first_, 1000), 500U);
  EXPECT_EQ(group_.must_wait(second_, 1500), 0U);
}

}  // namespace
}  // namespace vmm::test
