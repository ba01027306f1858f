#include "support/log.hpp"

#include <fmt/format.h>

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

bool Log::is_first(std::string_view key) {
  constexpr std::size_t max_keys = 1024;
  const std::scoped_lock lock{mutex_};
  if (seen_.size() >= max_keys || seen_.find(key) != seen_.end()) {
    ++held_back_;
    return false;
  }
  seen_.emplace(key);
  return true;
}

// The kinds are texts of this program, so there are few.
std::optional<std::string> Log::admit(fmt::string_view kind) {
  const std::scoped_lock lock{mutex_};
  const std::string_view text{kind.data(), kind.size()};
  auto known = kinds_.find(text);
  if (known == kinds_.end()) known = kinds_.emplace(text, 0).first;
  if (++known->second <= max_of_a_kind) return "";
  ++held_back_;
  const std::uint64_t held = known->second - max_of_a_kind;
  std::uint64_t digits = held;
  while (digits % 10 == 0) digits /= 10;
  if (digits != 1) return std::nullopt;
  if (held == 1) return "further messages like this one are counted, not shown: ";
  return fmt::format("held back {} messages like this one: ", held);
}

std::uint64_t Log::held_back() const {
  const std::scoped_lock lock{mutex_};
  return held_back_;
}

void Log::tell_held_back() {
  const std::uint64_t held = held_back();
  if (held != 0 && wants(LogLevel::warning))
    deliver(LogLevel::warning, fmt::format("{} messages like those above were held back", held));
}

void Log::deliver(LogLevel level, const std::string& line) {
  const std::scoped_lock lock{mutex_};
  sink_(level, line);
}

}  // namespace vmm
