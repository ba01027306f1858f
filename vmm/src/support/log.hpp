#pragma once
#include <fmt/core.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace vmm {

enum class LogLevel { debug, info, warning, error };

/// "debug", "info", "warning" or "error".
std::string_view name_of(LogLevel level);

/// Where messages of the library go. The owner decides what to do with a line; nothing below the command line program
/// prints. Thread-safe: lines arrive one at a time. A formatted line allocates, so keep it off paths that run per exit.
class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view)>;

  /// A log that drops everything.
  Log() = default;
  /// Lines below `threshold` are dropped before formatting.
  explicit Log(Sink sink, LogLevel threshold = LogLevel::info) : sink_{std::move(sink)}, threshold_{threshold} {}

  [[nodiscard]] bool wants(LogLevel level) const { return sink_ && level >= threshold_; }

  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::debug, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::info, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::warning, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::error, text, std::forward<Args>(args)...);
  }

  /// True the first time it is asked for `key`: for messages that a guest could otherwise repeat without end.
  /// Remembers at most 1024 keys; later ones answer false.
  bool first_time(std::string_view key);

 private:
  template <class... Args>
  void write(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
    if (wants(level)) {
      deliver(level, fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void deliver(LogLevel level, const std::string& line);

  Sink sink_;
  LogLevel threshold_{LogLevel::error};
  std::mutex mutex_;
  std::set<std::string, std::less<>> seen_;
};

}  // namespace vmm
