#include "control/worker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace vmm {
namespace {

TEST(Worker, TellsWhenTheWorkIsDone) {
  Worker worker;
  int steps = 0;
  for (int round = 0; round < 3; ++round) {
    std::promise<int> done;
    worker.start([&] { ++steps; }, [&] { done.set_value(steps); });
    EXPECT_EQ(done.get_future().get(), round + 1);
  }
  EXPECT_FALSE(worker.abandon());
  EXPECT_FALSE(worker.abandon());
}

TEST(Worker, IsNotWaitedForOnceItsWorkIsAbandoned) {
  auto release = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  auto told = std::make_shared<std::atomic<bool>>(false);
  {
    Worker worker;
    std::promise<void> begun;
    worker.start(
        [&begun, release, ended] {
          begun.set_value();
          release->get_future().wait();
          ended->set_value();
        },
        [told] { *told = true; });
    begun.get_future().wait();
    EXPECT_TRUE(worker.abandon());
  }
  release->set_value();
  ended->get_future().wait();
  EXPECT_FALSE(*told);
}

}  // namespace
}  // namespace vmm
