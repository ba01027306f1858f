#include "control/console.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

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

void ConsoleOutput::put(std::uint8_t byte) {
  constexpr std::size_t longest_line = 512;
  bool announce = false;
  {
    const std::scoped_lock lock{mutex_};
    waiting_.push_back(static_cast<char>(byte));
    if (byte == '\n' || waiting_.size() >= longest_line) {
      write_out();
    } else if (!announced_) {
      announced_ = announce = true;
    }
  }
  if (announce && rest_waits_) {
    rest_waits_();
  }
}

void ConsoleOutput::flush() {
  const std::scoped_lock lock{mutex_};
  announced_ = false;
  write_out();
}

void ConsoleOutput::write_out() {
  constexpr int patience_ms = 1000;
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const auto written = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
      continue;
    }
    pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (errno != EINTR && (errno != EAGAIN || ::poll(&ready, 1, patience_ms) <= 0)) {
      break;
    }
  }
  waiting_.clear();
}

}  // namespace vmm
