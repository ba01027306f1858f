#pragma once
#include <termios.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vmm {

/// Puts a terminal into raw mode for as long as it lives, so that every key reaches the guest; restores it at the end.
/// Does nothing when the descriptor is no terminal or the process is in its background.
class RawTerminal {
 public:
  explicit RawTerminal(int fd);
  ~RawTerminal() { restore(); }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;
  RawTerminal(RawTerminal&&) = delete;
  RawTerminal& operator=(RawTerminal&&) = delete;

  [[nodiscard]] bool active() const { return saved_.has_value(); }
  void restore();

 private:
  int fd_;
  std::optional<termios> saved_;
};

/// Finds the console's own keys in what the user types: Ctrl-A X quits, Ctrl-A Ctrl-A sends one Ctrl-A.
class EscapeKeys {
 public:
  struct Result {
    std::vector<std::byte> input;  ///< For the guest.
    bool quit;
  };
  Result feed(std::span<const std::byte> typed);

 private:
  bool escaped_{false};
};

/// Collects the guest's output and writes it to a descriptor line by line; the owner calls flush() now and then for the rest.
/// Thread-safe. A descriptor that takes no more loses output, never stops the guest for long.
class ConsoleOutput {
 public:
  /// `rest_waits` is called when bytes wait that end no line, at most once until the next flush().
  ConsoleOutput(int fd, std::function<void()> rest_waits) : fd_{fd}, rest_waits_{std::move(rest_waits)} {}

  void put(std::uint8_t byte);
  void flush();

 private:
  void write_out();

  int fd_;
  std::function<void()> rest_waits_;
  std::mutex mutex_;
  std::string waiting_;
  bool announced_{false};
};

}  // namespace vmm
