#pragma once
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "kvm/kick.hpp"

namespace vmm::test {

/// Kicks the thread that made it from another thread, and tells how much CPU time the kicked thread has used since: a
/// busy host makes no kick look late. Aborts the process if a kick does not end a run.
class Kicker {
 public:
  using nanoseconds = std::chrono::nanoseconds;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  static constexpr nanoseconds max = std::chrono::milliseconds{500};
#else
  static constexpr nanoseconds max = std::chrono::milliseconds{50};
#endif

  Kicker() : kicked_{::pthread_self()} {
    EXPECT_TRUE(install_kick_handler());
    EXPECT_EQ(::pthread_getcpuclockid(kicked_, &clock_), 0);
    thread_ = std::thread{[this] { work(); }};
  }
  ~Kicker() {
    {
      const std::scoped_lock lock{mutex_};
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Kicker(const Kicker&) = delete;
  Kicker& operator=(const Kicker&) = delete;
  Kicker(Kicker&&) = delete;
  Kicker& operator=(Kicker&&) = delete;

  void kick_after(std::chrono::microseconds delay) {
    {
      const std::scoped_lock lock{mutex_};
      sent_at_ = 0;
      seen_ = false;
      delay_ = delay;
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool has_kicked() const { return sent_at_ != 0; }
  [[nodiscard]] nanoseconds now() const { return time_of(CLOCK_THREAD_CPUTIME_ID); }
  /// CPU time since the kick, or since `begin` if that was later.
  nanoseconds took(nanoseconds begin) {
    const nanoseconds since = now() - std::max(begin, nanoseconds{sent_at_});
    seen();
    return since;
  }
  void seen() {
    {
      const std::scoped_lock lock{mutex_};
      seen_ = true;
    }
    changed_.notify_all();
  }

 private:
  static nanoseconds time_of(clockid_t clock) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return std::chrono::seconds{t.tv_sec} + nanoseconds{t.tv_nsec};
  }
  void work() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || delay_; });
      if (ended_) return;
      const auto delay = *std::exchange(delay_, std::nullopt);
      changed_.wait_for(lock, delay, [this] { return ended_; });
      sent_at_ = std::max<std::int64_t>(1, time_of(clock_).count());
      kick(kicked_);
      if (changed_.wait_for(lock, std::chrono::seconds{60}, [this] { return ended_ || seen_ || delay_; })) continue;
      std::fputs("no kick ends the run\n", stderr);
      std::abort();
    }
  }

  pthread_t kicked_;
  clockid_t clock_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::chrono::microseconds> delay_;  ///< This and the next two: under mutex_.
  bool seen_{}, ended_{};
  std::atomic<std::int64_t> sent_at_{};  ///< In the kicked thread's CPU time; 0: not yet.
  std::thread thread_;
};

}  // namespace vmm::test
