#include "exec/guest/stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace vmm::tool::guest {

void Stream::end_behind(std::optional<std::uint64_t> bytes) {
  if (done() || !source_.valid()) return;
  end_ = bytes.value_or(no_end);
  ends_when_empty_ = !bytes;
  if (buffer_.empty()) fill();
  flush();
}

void Stream::close() {
  done_ = true;
  source_.reset();
  if (at_end_ == AtEnd::close_sink) sink_.reset();
}

std::array<pollfd, 2> Stream::waits_for() const {
  if (done()) return {pollfd{.fd = -1}, pollfd{.fd = -1}};
  const short room = buffer_.empty() ? short{0} : short{POLLOUT};
  // An end that has nothing to do is left out: poll() would report again and again that the source's writer has gone.
  return {pollfd{.fd = buffer_.empty() ? source_.get() : -1, .events = POLLIN},
          pollfd{.fd = sink_.get(), .events = room}};
}

void Stream::go_on(const std::array<pollfd, 2>& polled) {
  if (done()) return;
  if ((polled[1].revents & (POLLERR | POLLHUP)) != 0) return close();
  if (polled[0].revents != 0 && source_.valid() && buffer_.empty()) fill();
  flush();
}

void Stream::end_source() {
  source_.reset();
  buffer_ += std::exchange(last_words_, {});
}

void Stream::fill() {
  const std::uint64_t room = std::min<std::uint64_t>(buffer_bytes, end_ - std::min(end_, read_));
  buffer_.resize(room);
  const ssize_t bytes = room == 0 ? 0 : ::read(source_.get(), buffer_.data(), buffer_.size());
  const int failure = errno;
  buffer_.resize(static_cast<std::size_t>(std::max(bytes, ssize_t{0})));
  read_ += buffer_.size();
  const bool nothing_now = bytes < 0 && (failure == EAGAIN || failure == EINTR);
  if (nothing_now ? ends_when_empty_ : bytes <= 0) end_source();
}

void Stream::flush() {
  while (!done()) {
    if (taken_ == buffer_.size()) {
      buffer_.clear();
      taken_ = 0;
      if (read_ >= end_ && source_.valid()) end_source();
      if (ends_when_empty_ && source_.valid()) fill();  // poll() would not tell that there is no more
      if (!buffer_.empty()) continue;                   // the last words
      if (!source_.valid()) close();
      return;
    }
    const ssize_t bytes = ::write(sink_.get(), buffer_.data() + taken_, buffer_.size() - taken_);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes < 0) return close();
    taken_ += static_cast<std::size_t>(bytes);
    written_ += static_cast<std::uint64_t>(bytes);
  }
}

}  // namespace vmm::tool::guest
