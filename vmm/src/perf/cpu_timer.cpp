#include "perf/cpu_timer.hpp"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "kvm/kick.hpp"

namespace vmm {
namespace {

using std::chrono::nanoseconds;

nanoseconds thread_cpu_time() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds{t.tv_sec} + nanoseconds{t.tv_nsec};
}

pid_t thread_id() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Kicks the thread that made it, once, after some time on the monotonic clock.
class MonotonicTimer {
 public:
  static Result<MonotonicTimer> create() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kick_signal();
    event.sigev_value = kick_value();
    event._sigev_un._tid = thread_id();
    timer_t timer{};
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return host_error("timer_create", errno);
    return MonotonicTimer{timer};
  }
  ~MonotonicTimer() {
    if (timer_) ::timer_delete(*timer_);
  }
  MonotonicTimer(MonotonicTimer&& other) noexcept : timer_{std::exchange(other.timer_, std::nullopt)} {}
  MonotonicTimer(const MonotonicTimer&) = delete;
  MonotonicTimer& operator=(const MonotonicTimer&) = delete;
  MonotonicTimer& operator=(MonotonicTimer&&) = delete;

  Result<void> arm(nanoseconds after) { return set(std::max(after, CpuTimer::min())); }
  Result<void> disarm() { return set(nanoseconds{0}); }

 private:
  explicit MonotonicTimer(timer_t timer) : timer_{timer} {}
  Result<void> set(nanoseconds after) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(after);
    itimerspec when{};
    when.it_value.tv_sec = seconds.count();
    when.it_value.tv_nsec = (after - seconds).count();
    if (::timer_settime(*timer_, 0, &when, nullptr) != 0) return host_error("timer_settime", errno);
    return {};
  }
  std::optional<timer_t> timer_;  ///< Empty: it was moved to another.
};

/// Two timers on the monotonic clock: the thread CPU clock's timers have only the scheduler tick's resolution.
class PosixCpuTimer final : public CpuTimer {
 public:
  static Result<std::unique_ptr<CpuTimer>> create() {
    VMM_ASSIGN(auto due, MonotonicTimer::create());
    VMM_ASSIGN(auto wall, MonotonicTimer::create());
    return std::unique_ptr<CpuTimer>{new PosixCpuTimer{std::move(due), std::move(wall)}};
  }

  Result<void> arm(nanoseconds after) override { return due_.arm(after); }
  Result<void> arm_wall(nanoseconds after) override { return wall_.arm(after); }
  Result<void> disarm() override {
    VMM_TRY(due_.disarm());
    return wall_.disarm();
  }
  [[nodiscard]] nanoseconds now() const override { return thread_cpu_time(); }
  [[nodiscard]] std::string_view name() const override { return "POSIX timer"; }

 private:
  PosixCpuTimer(MonotonicTimer due, MonotonicTimer wall) : due_{std::move(due)}, wall_{std::move(wall)} {}
  MonotonicTimer due_, wall_;
};

/// A software perf event whose overflow sends the kick signal to this thread.
class PerfCpuTimer final : public CpuTimer {
 public:
  static Result<std::unique_ptr<CpuTimer>> create() {
    perf_event_attr attr{};
    attr.type = PERF_TYPE_SOFTWARE;
    attr.size = sizeof attr;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = static_cast<std::uint64_t>(min().count());
    attr.disabled = 1;
    attr.wakeup_events = 1;
    Fd fd{static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC))};
    if (!fd.valid()) return host_error("perf_event_open of cpu-clock", errno);
    const f_owner_ex owner{F_OWNER_TID, thread_id()};
    if (::fcntl(fd.get(), F_SETOWN_EX, &owner) != 0 || ::fcntl(fd.get(), F_SETSIG, kick_signal()) != 0 ||
        ::fcntl(fd.get(), F_SETFL, O_ASYNC) != 0)
      return host_error("fcntl of the cpu-clock event", errno);
    VMM_ASSIGN(auto wall, MonotonicTimer::create());
    return std::unique_ptr<CpuTimer>{new PerfCpuTimer{std::move(fd), std::move(wall)}};
  }

  Result<void> arm(nanoseconds after) override {
    auto period = static_cast<std::uint64_t>(std::max(after, min()).count());
    if (::ioctl(fd_.get(), PERF_EVENT_IOC_DISABLE, 0) != 0 || ::ioctl(fd_.get(), PERF_EVENT_IOC_PERIOD, &period) != 0 ||
        ::ioctl(fd_.get(), PERF_EVENT_IOC_REFRESH, 1) != 0)
      return host_error("arming the cpu-clock event", errno);
    return {};
  }
  Result<void> arm_wall(nanoseconds after) override { return wall_.arm(after); }
  Result<void> disarm() override {
    if (::ioctl(fd_.get(), PERF_EVENT_IOC_DISABLE, 0) != 0) return host_error("disarming the cpu-clock event", errno);
    return wall_.disarm();
  }
  [[nodiscard]] nanoseconds now() const override { return thread_cpu_time(); }
  [[nodiscard]] std::string_view name() const override { return "perf cpu-clock"; }

 private:
  PerfCpuTimer(Fd fd, MonotonicTimer wall) : fd_{std::move(fd)}, wall_{std::move(wall)} {}
  Fd fd_;
  MonotonicTimer wall_;
};

}  // namespace

Result<std::unique_ptr<CpuTimer>> CpuTimer::create() {
  if (auto perf = PerfCpuTimer::create()) return perf;
  return create_without_perf();
}

Result<std::unique_ptr<CpuTimer>> CpuTimer::create_without_perf() { return PosixCpuTimer::create(); }

}  // namespace vmm
