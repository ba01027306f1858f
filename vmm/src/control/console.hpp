#pragma once
#include <termios.h>

#include <cstddef>
#include <optional>
#include <span>
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

struct WindowSize {
  unsigned rows, columns;
};
/// Empty when the descriptor is no terminal, or one of no size.
std::optional<WindowSize> window_size(int fd);

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

}  // namespace vmm
