#include "exec/guest/control.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "exec/guest/system.hpp"

namespace vmm::tool::guest {

bool write_to_port(int port, std::string_view text) {
  while (!text.empty()) {
    pollfd state{.fd = port, .events = POLLOUT};
    ::poll(&state, 1, -1);
    if ((state.revents & POLLHUP) != 0) return false;
    const ssize_t written = ::write(port, text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written < 0 && errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

void Control::say(const GuestLine& line) {
  std::string text = write_line(line);
  if (port_.valid()) {
    gone_ = gone_ || !write_to_port(port_.get(), text);
    return;
  }
  text.pop_back();
  log(text);
}

void Control::say(const Error& error) {
  if (port_.valid()) return say(ErrorLine{text_of(error)});
  log_error(text_of(error));  // the host reads it there
}

void Control::listen(const std::function<void(const HostLine&)>& take) {
  std::array<char, 4096> part{};
  const ssize_t bytes = ::read(port_.get(), part.data(), part.size());
  if (bytes < 0) return;  // nothing has arrived
  gone_ = gone_ || bytes == 0;
  lines_.add({part.data(), static_cast<std::size_t>(bytes)});
  while (const auto text = lines_.take_line()) {
    if (const auto line = read_host_line(*text))
      take(*line);
    else
      say(line.error());
  }
}

void Control::wait_for_off() {
  for (bool off = !port_.valid(); !off && !gone_;) {
    pollfd state{.fd = port_.get(), .events = POLLIN};
    ::poll(&state, 1, -1);
    listen([&off](const HostLine& line) { off = off || std::holds_alternative<OffLine>(line); });
  }
}

}  // namespace vmm::tool::guest
