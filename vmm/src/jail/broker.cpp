#include "jail/broker.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

namespace vmm {
namespace {

// A message, in either direction, is its size in 8 bytes, followed by its bytes. A request's first byte names the duty;
// the statistics follow it. An answer is empty on success; otherwise it has the error's kind, errno, text and advice,
// each followed by a NUL. After the good answer to a request for an event comes one byte, with the event's descriptor.
constexpr std::uint64_t max_message_length = 64U << 20U;
constexpr char to_write_statistics = 's', to_finish_snapshot = 'f', to_open_event = 'e';

/// A request for an event, after its first byte.
struct WantedEvent {
  std::uint64_t config{};
  std::uint32_t type{};
  std::int32_t thread{};
  std::uint8_t usr{}, os{}, guest_only{};
};

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
  if (!receive_all(from, &size, sizeof size) || size > max_message_length) return {};
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

/// Room for one descriptor beside a message.
union Control {
  cmsghdr header;
  std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes;
};

bool send_descriptor(int to, const Fd& descriptor) {
  char byte = to_open_event;
  iovec part{.iov_base = &byte, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = descriptor.get();
  std::memcpy(CMSG_DATA(header), &number, sizeof number);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(to, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1;
}

/// Invalid if none came.
Fd receive_descriptor(int from) {
  char byte{};
  iovec part{.iov_base = &byte, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* const header = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return {};
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof number);
  return Fd{number};
}

/// The jailed process may have been taken over: it gets events of its own threads only, and of these only what the
/// perf source needs.
Result<Fd> open_event(const Broker::Duties& duties, pid_t process, std::string_view message) {
  WantedEvent wanted;
  if (!duties.open_event || message.size() != sizeof wanted)
    return host_error("the broker got a request for a performance event that it does not know");
  std::memcpy(&wanted, message.data(), sizeof wanted);
  if (wanted.type != PERF_TYPE_HARDWARE && wanted.type != PERF_TYPE_RAW)
    return host_error(fmt::format("the broker opens no performance event of type {}", wanted.type));
  if (wanted.guest_only == 0 && wanted.os != 0)
    return host_error("the broker opens no performance event that counts the host's kernel");
  if (wanted.thread <= 0 || ::syscall(SYS_tgkill, process, wanted.thread, 0) != 0)
    return host_error(
        fmt::format("the broker opens no performance event of thread {}, which is not the machine's", wanted.thread));
  return duties.open_event({.event = {.type = wanted.type, .config = wanted.config},
                            .usr = wanted.usr != 0,
                            .os = wanted.os != 0,
                            .guest_only = wanted.guest_only != 0},
                           wanted.thread);
}

Result<void> do_duty(const Broker::Duties& duties, std::string_view message) {
  if (message.starts_with(to_write_statistics)) return duties.write_statistics(message.substr(1));
  if (message.starts_with(to_finish_snapshot) && duties.finish_snapshot) return duties.finish_snapshot();
  return host_error("the broker got a request that it does not know");
}

/// The child.
[[noreturn]] void serve(int process, pid_t id, const Broker::Duties& duties) {
  ::prctl(PR_SET_NAME, "vpmu-broker");
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (null >= 0) ::dup2(null, standard);
  close_others({process, duties.keeps[0], duties.keeps[1]});
  while (const auto message = receive_message(process)) {
    const bool wants_event = message->starts_with(to_open_event);
    const auto event = wants_event ? open_event(duties, id, std::string_view{*message}.substr(1)) : Result<Fd>{Fd{}};
    const auto done = event ? wants_event ? Result<void>{} : do_duty(duties, *message) : Failure{event.error()};
    if (!send_message(process, done ? std::string{} : encode(done.error()))) break;
    if (wants_event && done && !send_descriptor(process, *event)) break;
  }
  duties.clean_up();
  ::_exit(EXIT_SUCCESS);
}

}  // namespace

Result<Broker> Broker::start(const Duties& duties) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return host_error("socketpair", errno);
  Fd here{ends[0]}, there{ends[1]};
  const pid_t process = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return host_error("cannot start the broker: fork", errno, "--no-jail runs without it");
  if (child == 0) serve(there.get(), process, duties);
  return Broker{std::move(here)};
}

Result<void> Broker::write_statistics(std::string_view text) { return ask(to_write_statistics + std::string{text}); }

Result<void> Broker::finish_snapshot() { return ask({&to_finish_snapshot, 1}); }

Result<Fd> Broker::open_event(const PerfEventSpec& spec, pid_t thread) {
  const WantedEvent wanted{.config = spec.event.config,
                           .type = spec.event.type,
                           .thread = thread,
                           .usr = static_cast<std::uint8_t>(spec.usr),
                           .os = static_cast<std::uint8_t>(spec.os),
                           .guest_only = static_cast<std::uint8_t>(spec.guest_only)};
  std::string message(1 + sizeof wanted, to_open_event);
  std::memcpy(message.data() + 1, &wanted, sizeof wanted);
  Fd event;
  VMM_TRY(ask(message, &event));
  return event;
}

Result<void> Broker::ask(std::string_view message, Fd* descriptor) {
  const auto gone = [] {
    return host_error(
        "the broker has ended: it is the process that writes the statistics, names the snapshot and opens performance "
        "events");
  };
  const std::scoped_lock lock{*asking_};
  if (!to_child_.valid() || !send_message(to_child_.get(), message)) return gone();
  const auto answer = receive_message(to_child_.get());
  if (!answer) return gone();
  if (answer->empty() && descriptor != nullptr) *descriptor = receive_descriptor(to_child_.get());
  if (answer->empty()) return descriptor == nullptr || descriptor->valid() ? Result<void>{} : gone();
  return Failure{decode(*answer)};
}

void Broker::end() {
  if (!to_child_.valid()) return;
  ::shutdown(to_child_.get(), SHUT_WR);
  // Waits until the child has ended, and so has done all its duties.
  char byte{};
  (void)receive_all(to_child_.get(), &byte, 1);
  to_child_.reset();
}

}  // namespace vmm
