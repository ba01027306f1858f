#include "virtio/last_lines.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "support/error.hpp"

namespace vmm::virtio {
namespace {

constexpr std::size_t max_lines = 32, max_line_length = 1024, lines_told = 2;

/// The end of a long line: it usually tells what went wrong, after the arguments.
std::string end_of(const std::string& line) {
  constexpr std::size_t max = 77;
  return line.size() <= max ? line : "..." + line.substr(line.size() - max);
}

}  // namespace

LastLines::LastLines(Fd pipe) : pipe_{std::move(pipe)} { ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK); }

bool LastLines::read() {
  std::array<char, 4096> part{};
  const std::lock_guard lock{mutex_};
  // Bounded, so that a daemon that writes without end does not keep its reader here.
  for (unsigned parts = 0; parts < 64; ++parts) {
    const ssize_t got = ::read(pipe_.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    take(part.data(), static_cast<std::size_t>(got));
  }
  return true;
}

bool LastLines::read_to_end(std::chrono::milliseconds patience) {
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (read()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, static_cast<int>(left.count()));
  }
  return true;
}

void LastLines::take(const char* data, std::size_t size) {
  std::string_view rest{data, size};
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    auto& line = lines_.back();
    line.append(rest.substr(0, std::min(end, max_line_length - line.size())));
    if (end == std::string_view::npos) return;
    rest.remove_prefix(end + 1);
    if (line.empty()) continue;
    lines_.emplace_back();
    if (lines_.size() > max_lines) lines_.pop_front();
  }
}

std::string LastLines::in_one_line() {
  read();
  const std::lock_guard lock{mutex_};
  std::string told;
  const std::size_t lines = lines_.size() - (lines_.back().empty() ? 1 : 0);
  for (std::size_t index = lines - std::min(lines, lines_told); index < lines; ++index)
    told += (told.empty() ? "" : " / ") + printable(end_of(lines_[index]));
  return told;
}

std::string LastLines::text() {
  const std::lock_guard lock{mutex_};
  std::string all;
  for (const std::string& line : lines_) all += line + '\n';
  return all;
}

}  // namespace vmm::virtio
