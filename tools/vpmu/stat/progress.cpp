#include "stat/progress.hpp"

#include <cstdio>

#include <fmt/format.h>

namespace vmm::tool {

void Progress::begin(std::string what) {
  constexpr std::chrono::seconds patience{2};
  what_ = std::move(what);
  begun_ = Clock::now();
  next_ = begun_ + patience;
}

void Progress::tick(const std::string& detail) {
  constexpr std::chrono::seconds interval{10};
  const auto now = Clock::now();
  if (voice_ == Voice::quiet || now < next_) return;
  next_ = now + interval;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
  fmt::print(stderr, "{}: {}, {} s{}{}\n", name_, what_, seconds, detail.empty() ? "" : ", ", detail);
  std::fflush(stderr);
}

}  // namespace vmm::tool
