#include "ctl/ctl.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "command_line.hpp"
#include "control/protocol.hpp"
#include "kvm/fd.hpp"
#include "shared/output.hpp"
#include "snapshot/snapshot_file.hpp"
#include "support/result.hpp"

namespace vmm::tool {
namespace {

using namespace std::chrono_literals;

struct CtlArguments {
  std::string path;
  std::string command;
  std::string file;
  std::optional<double> timeout;  ///< In seconds.
};

/// Keeps only the outermost members of the answer: a guest that has taken over the machine may nest others without end.
bool is_good(const std::string& answer) {
  using Json = nlohmann::json;
  const auto shallow = [](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) { return depth <= 1; };
  const auto json = Json::parse(answer, shallow, false);
  return json.is_object() && json.value("ok", Json{}) == true;
}

bool takes_file(const std::string& command) { return command == "snapshot" || command == "suspend"; }

/// One exchange with the machine, and how long it may take.
class Exchange {
 public:
  explicit Exchange(const CtlArguments& arguments)
      : arguments_{arguments},
        seconds_{arguments.timeout.value_or(takes_file(arguments.command) ? seconds_for_memory : seconds_for_answer)} {}

  Result<std::string> ask() {
    VMM_TRY(connect());
    if (!takes_file(arguments_.command)) {
      VMM_TRY(send(make_request(arguments_.command) + "\n", {}));
      return read_line();
    }
    // This process writes the file, which may take for ever, and gives it its name only when the machine has sent all.
    VMM_ASSIGN(auto file, new_snapshot_file(arguments_.file));
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return host_error("cannot make a pipe", errno);
    const Fd from{ends[0]};
    Fd to{ends[1]};
    VMM_TRY(send(make_request(arguments_.command) + "\n", to));
    to.reset();
    VMM_TRY(copy(from, file));
    VMM_ASSIGN(auto answer, read_line());
    if (is_good(answer)) VMM_TRY(file.finish());
    return answer;
  }

 private:
  /// Until the machine has closed its end.
  Result<void> copy(const Fd& from, WholeFile& file) {
    std::vector<std::byte> part(1U << 20U);
    (void)::fcntl(from.get(), F_SETPIPE_SZ, static_cast<int>(part.size()));
    if (::fcntl(from.get(), F_SETFL, O_NONBLOCK) != 0) return host_error("cannot prepare a pipe", errno);
    for (;;) {
      VMM_TRY(wait_for(from, POLLIN));
      const auto got = ::read(from.get(), part.data(), part.size());
      if (got == 0) return {};
      if (got > 0) VMM_TRY(file.write(std::span{part}.first(static_cast<std::size_t>(got))));
      if (got < 0 && errno != EINTR && errno != EAGAIN) return host_error("cannot read what the machine sends", errno);
    }
  }

  using Clock = std::chrono::steady_clock;
  static constexpr double seconds_for_answer = 5;
  /// For requests that write the guest's memory to a file.
  static constexpr double seconds_for_memory = 600;
  /// More than the counters of any machine.
  static constexpr std::size_t max_answer_length = 16U << 20U;

  Result<void> connect() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (arguments_.path.size() >= sizeof address.sun_path)
      return usage_error("the socket path " + printable(arguments_.path) + " is too long",
                         "give the path of `vpmu run --control`");
    arguments_.path.copy(address.sun_path, arguments_.path.size());
    socket_ = Fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    while (socket_.valid()) {
      if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return {};
      // EAGAIN: the queue of connections that wait for the machine is full.
      if (errno != EAGAIN && errno != EINTR) break;
      if (left() == 0ms) return too_late();
      std::this_thread::sleep_for(10ms);
    }
    return host_error("no machine answers at " + printable(arguments_.path), errno,
                      "give the path of `vpmu run --control`");
  }

  /// A valid descriptor is sent with the first bytes.
  Result<void> send(std::string_view text, const Fd& file) {
    bool with_file = file.valid();
    while (!text.empty()) {
      const auto sent = send_once(text, with_file ? file.get() : -1);
      if (sent > 0) with_file = false;
      if (sent >= 0) {
        text.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        VMM_TRY(wait_for(socket_, POLLOUT));
      } else if (errno != EINTR) {
        return host_error("cannot send to the machine", errno);
      }
    }
    return {};
  }

  [[nodiscard]] ssize_t send_once(std::string_view text, int file) const {
    // sendmsg() only reads it. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
    iovec from{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &from;
    message.msg_iovlen = 1;
    if (file >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof file);
      std::memcpy(CMSG_DATA(head), &file, sizeof file);
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  }

  Result<std::string> read_line() {
    std::string line;
    std::array<char, 4096> part{};
    while (line.size() <= max_answer_length) {
      const auto got = ::read(socket_.get(), part.data(), part.size());
      if (got > 0) {
        line.append(part.data(), static_cast<std::size_t>(got));
        if (const auto end = line.find('\n', line.size() - static_cast<std::size_t>(got)); end != std::string::npos)
          return line.substr(0, end);
      } else if (got < 0 && errno == EAGAIN) {
        VMM_TRY(wait_for(socket_, POLLIN));
      } else if (got == 0 || errno != EINTR) {
        return host_error("the machine ended the connection", got < 0 ? errno : 0);
      }
    }
    return host_error(fmt::format("the answer has more than {} bytes", max_answer_length), 0,
                      "give the path of `vpmu run --control`");
  }

  /// Until it is ready, or a signal came.
  Result<void> wait_for(const Fd& which, short events) {
    pollfd ready{.fd = which.get(), .events = events, .revents = 0};
    const int found = ::poll(&ready, 1, static_cast<int>(left().count()));
    if (found == 0 && left() == 0ms) return too_late();
    return {};
  }

  [[nodiscard]] std::chrono::milliseconds left() const {
    const auto until = begin_ + std::chrono::duration<double>{seconds_};
    return std::max(0ms, std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()));
  }

  [[nodiscard]] Failure too_late() const {
    return host_error(
        fmt::format("the machine at {} has not answered within {} seconds", printable(arguments_.path), seconds_), 0,
        "it may be writing a snapshot; wait longer with --timeout SECONDS");
  }

  const CtlArguments& arguments_;
  double seconds_;
  Clock::time_point begin_{Clock::now()};
  Fd socket_;
};

Result<std::string> ask(const CtlArguments& arguments) {
  if (takes_file(arguments.command) == arguments.file.empty())
    return usage_error(arguments.file.empty() ? arguments.command + " needs a file to write"
                                              : fmt::format("{} takes no file, and \"{}\" was given", arguments.command,
                                                            printable(arguments.file)),
                       "only snapshot and suspend take one: `vpmu ctl SOCKET snapshot FILE`");
  return Exchange{arguments}.ask();
}

int ask_and_print(const CtlArguments& arguments) {
  const auto reply = ask(arguments);
  if (!reply) {
    std::fprintf(stderr, "vpmu ctl: %s\n", describe(reply.error()).c_str());
    return reply.error().kind == ErrorKind::usage ? 2 : 1;
  }
  print(*reply + "\n");
  return is_good(*reply) ? 0 : 1;
}

}  // namespace

void add_ctl(Command& app, int& exit_code) {
  auto arguments = std::make_shared<CtlArguments>();
  Command ctl = app.add_command("ctl", "control a running machine");
  ctl.add_option("socket", arguments->path, "the path given to `vpmu run --control`").required().takes_file();
  ctl.add_option("command", arguments->command,
                 "status, counters, snapshot (save and continue), suspend (save and stop) or stop")
      .required()
      .one_of({"status", "counters", "snapshot", "suspend", "stop"});
  ctl.add_option("file", arguments->file,
                 "for snapshot and suspend: the file to write, which `vpmu run --restore` takes")
      .takes_file();
  ctl.add_option("--timeout", arguments->timeout,
                 "seconds to wait for the answer; default: 5, for snapshot and suspend 600")
      .within(0.001, 1e6);
  ctl.set_exit_codes({{.code = "0", .meaning = "the machine did it"},
                      {.code = "1", .meaning = "the machine refused or failed, or none answers"},
                      {.code = "2", .meaning = "wrong use"}});
  ctl.add_example("vpmu ctl SOCKET status", "prints the status of a running machine");
  ctl.add_example("vpmu ctl SOCKET suspend FILE", "saves a running machine, and ends it");
  ctl.when_given([arguments, &exit_code] { exit_code = ask_and_print(*arguments); });
}

}  // namespace vmm::tool
