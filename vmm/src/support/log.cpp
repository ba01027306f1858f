#include "support/log.hpp"

namespace vmm {

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "error";
}

bool Log::first_time(std::string_view key) {
  constexpr std::size_t most_keys = 1024;
  const std::scoped_lock lock{mutex_};
  if (seen_.size() >= most_keys || seen_.find(key) != seen_.end()) {
    return false;
  }
  seen_.emplace(key);
  return true;
}

void Log::deliver(LogLevel level, const std::string& line) {
  const std::scoped_lock lock{mutex_};
  sink_(level, line);
}

}  // namespace vmm
