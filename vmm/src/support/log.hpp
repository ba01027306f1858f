#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
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
///
/// A guest can cause most messages as often as it likes. So of the messages with the same text (before it is formatted)
/// the first max_of_a_kind are passed on at once. Further ones are held back and counted. The first of these is shown
/// and says so; the tenth, the hundredth and so on say how many there were. held_back() counts all.
class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view)>;
  static constexpr std::uint64_t max_of_a_kind = 10;

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

  /// Passes on only the first message for each `key`: for those of which one is enough. Remembers at most 1024 keys;
  /// the messages for later ones are held back, as repetitions are.
  template <class... Args>
  void once(LogLevel level, std::string_view key, fmt::format_string<Args...> text, Args&&... args) {
    if (wants(level) && is_first(key)) deliver(level, fmt::format(text, std::forward<Args>(args)...));
  }

  /// How many messages were not passed on.
  [[nodiscard]] std::uint64_t held_back() const;
  /// For the end: says how many messages were held back, if any were.
  void tell_held_back();

 private:
  template <class... Args>
  void write(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
    if (!wants(level)) return;
    const auto admitted = admit(fmt::string_view{text});
    if (!admitted) return;
    deliver(level, *admitted + fmt::format(text, std::forward<Args>(args)...));
  }
  /// Counts a message of this kind. Empty: it is held back. Otherwise what to say before it.
  std::optional<std::string> admit(fmt::string_view kind);
  bool is_first(std::string_view key);
  void deliver(LogLevel level, const std::string& line);

  Sink sink_;
  LogLevel threshold_{LogLevel::error};
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> kinds_;  ///< How often each was written.
  std::set<std::string, std::less<>> seen_;
  std::uint64_t held_back_{};
};

}  // namespace vmm
