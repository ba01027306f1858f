#include "jail/steward.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace vmm {
namespace {

// A message, in either direction, is its size in 8 bytes, followed by its bytes. A request's first byte names the duty;
// the statistics follow it. An answer is empty on success; otherwise it has the error's kind, errno, text and advice,
// each followed by a NUL.
constexpr std::uint64_t longest_message = 64U << 20U;
constexpr char to_write_statistics = 's', to_finish_snapshot = 'f';

bool send_all(int to, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size != 0) {
    const ssize_t sent = ::send(to, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int from, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size != 0) {
    const ssize_t got = ::recv(from, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_message(int to, std::string_view text) {
  const std::uint64_t size = text.size();
  return send_all(to, &size, sizeof size) && send_all(to, text.data(), text.size());
}

/// Empty if the other side has gone, or has sent something that is no message.
std::optional<std::string> receive_message(int from) {
  std::uint64_t size = 0;
  if (!receive_all(from, &size, sizeof size) || size > longest_message) return {};
  std::string text(size, '\0');
  if (!receive_all(from, text.data(), text.size())) return {};
  return text;
}

std::string encode(const Error& error) {
  std::string text;
  for (const std::string& part :
       {std::to_string(static_cast<int>(error.kind)), std::to_string(error.system_errno), error.what, error.advice})
    text.append(part).push_back('\0');
  return text;
}

Error decode(std::string_view text) {
  const auto next = [&text] {
    const std::string part{text.substr(0, text.find('\0'))};
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    return part;
  };
  Error error;
  error.kind = next() == "0" ? ErrorKind::usage : ErrorKind::host;
  error.system_errno = std::atoi(next().c_str());
  error.what = next();
  error.advice = next();
  return error;
}

void close_others(std::array<int, 3> all_kept) {
  std::ranges::sort(all_kept);
  unsigned next = STDERR_FILENO + 1;
  for (const int kept : all_kept) {
    if (kept < static_cast<int>(next)) continue;
    if (kept > static_cast<int>(next)) ::close_range(next, static_cast<unsigned>(kept) - 1, 0);
    next = static_cast<unsigned>(kept) + 1;
  }
  ::close_range(next, ~0U, 0);
}

Result<void> do_duty(const Steward::Duties& duties, std::string_view message) {
  if (message.starts_with(to_write_statistics)) return duties.write_statistics(message.substr(1));
  if (message.starts_with(to_finish_snapshot) && duties.finish_snapshot) return duties.finish_snapshot();
  return host_error("the steward got a request that it does not know");
}

/// The child.
[[noreturn]] void serve(int process, const Steward::Duties& duties) {
  ::prctl(PR_SET_NAME, "vpmu-steward");
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (null >= 0) ::dup2(null, standard);
  close_others({process, duties.keeps[0], duties.keeps[1]});
  while (const auto message = receive_message(process)) {
    const auto done = do_duty(duties, *message);
    if (!send_message(process, done ? std::string{} : encode(done.error()))) break;
  }
  duties.clean_up();
  ::_exit(EXIT_SUCCESS);
}

}  // namespace

Result<Steward> Steward::start(const Duties& duties) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return host_error("socketpair", errno);
  Fd here{ends[0]}, there{ends[1]};
  const pid_t child = ::fork();
  if (child < 0) return host_error("cannot start the steward: fork", errno, "--no-jail runs without it");
  if (child == 0) serve(there.get(), duties);
  return Steward{std::move(here)};
}

Result<void> Steward::write_statistics(std::string_view text) { return ask(to_write_statistics + std::string{text}); }

Result<void> Steward::finish_snapshot() { return ask({&to_finish_snapshot, 1}); }

Result<void> Steward::ask(std::string_view message) {
  const auto gone = [] {
    return host_error("the steward has ended: it is the process that writes the statistics and names the snapshot");
  };
  if (!to_child_.valid() || !send_message(to_child_.get(), message)) return gone();
  const auto answer = receive_message(to_child_.get());
  if (!answer) return gone();
  if (answer->empty()) return {};
  return Failure{decode(*answer)};
}

void Steward::end() {
  if (!to_child_.valid()) return;
  ::shutdown(to_child_.get(), SHUT_WR);
  // Waits until the child has ended, and so has done all its duties.
  char byte{};
  (void)receive_all(to_child_.get(), &byte, 1);
  to_child_.reset();
}

}  // namespace vmm
