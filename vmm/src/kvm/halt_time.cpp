#include "kvm/halt_time.hpp"

#include <time.h>

#include <utility>

namespace vmm {
namespace {

std::chrono::nanoseconds clock_time(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec};
}

}  // namespace

HaltTime::HaltTime(Fd statistics) : waited_{std::move(statistics), "halt_wait_ns"} {}

std::chrono::nanoseconds HaltTime::read() const {
  if (const auto waited = waited_.read()) return std::chrono::nanoseconds{static_cast<std::int64_t>(*waited)};
  return clock_time(CLOCK_MONOTONIC) - clock_time(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace vmm
