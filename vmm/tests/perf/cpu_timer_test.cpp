// Both kinds of timer: with perf, and what serves where perf is not allowed.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kvm/kick.hpp"
#include "perf/cpu_timer.hpp"

namespace vmm::test {
namespace {

using namespace std::chrono_literals;
using Create = Result<std::unique_ptr<CpuTimer>> (*)();

class Timers : public testing::TestWithParam<Create> {
 protected:
  Timers() {
    EXPECT_TRUE(install_kick_handler());
    auto made = GetParam()();
    EXPECT_TRUE(made);
    if (made) timer_ = std::move(*made);
  }
  /// Whether a kick comes within a minute; the thread works meanwhile, as the clock of its CPU time stands otherwise.
  [[nodiscard]] bool is_kicked() const { return is_kicked_within(1min); }
  [[nodiscard]] bool is_kicked_within(std::chrono::nanoseconds time) const {
    const auto end = std::chrono::steady_clock::now() + time;
    while (mark_of(flag_) == 0 && std::chrono::steady_clock::now() < end) {
    }
    return mark_of(flag_) != 0;
  }

  volatile std::uint8_t flag_{};
  KickTarget target_{&flag_};
  std::unique_ptr<CpuTimer> timer_;
};

TEST_P(Timers, Kick) {
  ASSERT_TRUE(timer_->arm(1ms));
  EXPECT_TRUE(is_kicked());
}

TEST_P(Timers, KickByTheWallClock) {
  ASSERT_TRUE(timer_->arm_wall(1ms));
  EXPECT_TRUE(is_kicked());
}

// An overflow that is due soon is not put off by a look that is due later.
TEST_P(Timers, AreTwo) {
  ASSERT_TRUE(timer_->arm(1ms));
  ASSERT_TRUE(timer_->arm_wall(1h));
  EXPECT_TRUE(is_kicked());
}

TEST_P(Timers, AreBothDisarmed) {
  ASSERT_TRUE(timer_->arm(20ms));
  ASSERT_TRUE(timer_->arm_wall(20ms));
  ASSERT_TRUE(timer_->disarm());
  flag_ = 0;  // where the machine took so long that one had fired
  EXPECT_FALSE(is_kicked_within(100ms));
}

INSTANTIATE_TEST_SUITE_P(Of, Timers, testing::Values(CpuTimer::create, CpuTimer::create_without_perf),
                         [](const auto& kind) { return kind.index == 0 ? "Perf" : "Posix"; });

}  // namespace
}  // namespace vmm::test
