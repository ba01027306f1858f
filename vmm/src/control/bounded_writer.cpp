#include "control/bounded_writer.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "control/blocked_signals.hpp"

namespace vmm {
namespace {

using namespace std::chrono_literals;

/// A pipe takes this much at once or nothing, so that the number of bytes written is known while the next part waits.
constexpr std::size_t max_write_length = 4096;
/// An unfinished line of this length is written at once.
constexpr std::size_t max_line_length = 512;

bool is_regular(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

struct BoundedWriter::Shared {
  Shared(Fd descriptor, std::function<void()> left)
      : fd{std::move(descriptor)}, regular{is_regular(fd.get())}, reader_left{std::move(left)} {}

  /// What the thread runs.
  void write_all() {
    std::unique_lock lock{mutex};
    for (;;) {
      changed.wait(lock, [this] { return ending || !waiting.empty(); });
      if (waiting.empty() || abandoned) break;
      changed.wait_for(lock, 10ms, [this] { return ending || line_waits || waiting.size() >= max_line_length; });
      in_flight = std::exchange(waiting, {});
      sent = 0;
      line_waits = false;
      write_in_flight(lock);
      if (abandoned) break;
    }
    fd.reset();
    done = true;
    changed.notify_all();
  }

  void write_in_flight(std::unique_lock<std::mutex>& lock) {
    while (sent < in_flight.size() && !abandoned) {
      const auto part = std::string_view{in_flight}.substr(sent, max_write_length);
      lock.unlock();
      const auto wrote = ::write(fd.get(), part.data(), part.size());
      const int why = wrote < 0 ? errno : EIO;
      if (wrote < 0 && why == EAGAIN) wait_until_ready();
      lock.lock();
      if (abandoned) return;  // what is in flight was given up
      if (wrote > 0) {
        totals.written += static_cast<std::uint64_t>(wrote);
        sent += static_cast<std::size_t>(wrote);
      } else if (why == EINTR || why == EAGAIN) {
        continue;
      } else {
        lose(part.size(), why);
      }
      changed.notify_all();
    }
  }

  void lose(std::size_t bytes, int why) {
    totals.dropped += bytes;
    sent += bytes;
    if (totals.error == 0) totals.error = why;
    if (why == EPIPE && reader_left) std::exchange(reader_left, nullptr)();
  }

  /// For a descriptor that somebody else shares and has set to O_NONBLOCK.
  void wait_until_ready() const {
    constexpr int look_again_ms = 100;
    pollfd ready{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    (void)::poll(&ready, 1, look_again_ms);
  }

  [[nodiscard]] std::size_t left() const { return waiting.size() + in_flight.size() - sent; }
  [[nodiscard]] std::size_t room() const { return max_waiting - std::min(max_waiting, left()); }

  Fd fd;
  bool regular;
  mutable std::mutex mutex;
  std::condition_variable changed;
  // All under the mutex.
  std::function<void()> reader_left;
  std::string waiting;
  std::string in_flight;  ///< Read by the thread without the mutex, changed by no other.
  std::size_t sent{};     ///< Of in_flight.
  bool line_waits{false};
  bool ending{false};     ///< No more will be given.
  bool abandoned{false};  ///< Nobody waits for the thread any longer.
  bool done{false};
  bool stuck{false};  ///< A regular file took nothing for long: no more waiting until it does.
  Totals totals;
};

BoundedWriter::BoundedWriter(Fd fd, std::function<void()> reader_left)
    : shared_{std::make_shared<Shared>(std::move(fd), std::move(reader_left))} {
  const BlockedSignals blocked;  // write() itself reports a closed pipe
  thread_ = std::thread{[shared = shared_] { shared->write_all(); }};
}

BoundedWriter::~BoundedWriter() { finish(); }

void BoundedWriter::put(std::string_view text) {
  Shared& s = *shared_;
  std::unique_lock lock{s.mutex};
  while (!text.empty() && !s.ending) {
    if (s.regular && s.room() == 0 && !s.stuck) s.stuck = !s.changed.wait_for(lock, 2s, [&s] { return s.room() != 0; });
    const auto taken = text.substr(0, s.room());
    if (taken.empty()) break;
    const bool was_empty = s.waiting.empty();
    s.stuck = false;
    s.waiting += taken;
    s.line_waits = s.line_waits || taken.find('\n') != std::string_view::npos;
    if (was_empty || s.line_waits || s.waiting.size() >= max_line_length) s.changed.notify_all();
    text.remove_prefix(taken.size());
    if (!s.regular) break;
  }
  s.totals.dropped += text.size();
}

BoundedWriter::Totals BoundedWriter::totals() const {
  const std::scoped_lock lock{shared_->mutex};
  return shared_->totals;
}

BoundedWriter::Totals BoundedWriter::finish() {
  Shared& s = *shared_;
  std::unique_lock lock{s.mutex};
  if (!thread_.joinable()) return s.totals;
  s.ending = true;
  s.changed.notify_all();
  const auto last_moment = std::chrono::steady_clock::now() + 10s;
  const auto gone = [&s] { return s.totals.written + s.totals.dropped; };
  while (!s.done) {
    const auto before = gone();
    const auto until = std::min(last_moment, std::chrono::steady_clock::now() + 2s);
    if (s.changed.wait_until(lock, until, [&] { return s.done || gone() != before; })) continue;
    s.abandoned = true;
    s.totals.dropped += s.left();
    break;
  }
  const bool ended = s.done;
  const Totals totals = s.totals;
  lock.unlock();
  // A write that waits for ever ends with the process.
  ended ? thread_.join() : thread_.detach();
  return totals;
}

}  // namespace vmm
