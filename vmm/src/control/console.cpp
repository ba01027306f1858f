#include "control/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

namespace vmm {

RawTerminal::RawTerminal(int fd) : fd_{fd} {
  termios settings{};
  if (::isatty(fd) == 0 || ::tcgetpgrp(fd) != ::getpgrp() || ::tcgetattr(fd, &settings) != 0) {
    return;
  }
  saved_ = settings;
  ::cfmakeraw(&settings);
  ::tcsetattr(fd, TCSANOW, &settings);
}

void RawTerminal::restore() {
  if (saved_) {
    ::tcsetattr(fd_, TCSANOW, &*saved_);
    saved_.reset();
  }
}

std::optional<WindowSize> window_size(int fd) {
  winsize size{};
  if (fd < 0 || ::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return std::nullopt;
  return WindowSize{.rows = size.ws_row, .columns = size.ws_col};
}

EscapeKeys::Result EscapeKeys::feed(std::span<const std::byte> typed) {
  constexpr std::byte control_a{0x01};
  Result result{{}, false};
  for (const auto key : typed) {
    if (!escaped_ && key == control_a) {
      escaped_ = true;
      continue;
    }
    result.quit = result.quit || (escaped_ && (key == std::byte{'x'} || key == std::byte{'X'}));
    // Any other key after Ctrl-A goes through alone; Ctrl-A itself is such a key.
    if (!result.quit) {
      result.input.push_back(key);
    }
    escaped_ = false;
  }
  return result;
}

}  // namespace vmm
