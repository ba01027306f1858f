#include "control/session.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>

// Boost.Asio stays in this file: it costs seconds of compile time.
#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include "control/bounded_writer.hpp"
#include "control/console.hpp"
#include "control/protocol.hpp"
#include "files/output_file.hpp"

namespace vmm {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Local = asio::local::stream_protocol;

// NOLINTBEGIN(misc-no-recursion): Asio calls a handler later, not within the call that takes it.

/// One client of the control socket: a request line, a reply line, and so on. Keeps itself alive.
class ControlClient : public std::enable_shared_from_this<ControlClient> {
 public:
  ControlClient(Local::socket socket, const ControlHandlers& handlers)
      : socket_{std::move(socket)}, handlers_{&handlers} {}

  void read_request() {
    if (const auto end = input_.find('\n'); end != std::string::npos) return answer(end + 1);
    if (input_.size() >= longest_request) return refuse_longer();
    socket_.async_wait(Local::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (!error) self->receive();
    });
  }

 private:
  /// Receives bytes and the descriptor that came along, which Asio does not support.
  void receive() {
    std::array<char, longest_request> part;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec into{.iov_base = part.data(), .iov_len = part.size() - input_.size()};
    msghdr message{};
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
    if (const cmsghdr* const head = got < 0 ? nullptr : CMSG_FIRSTHDR(&message);
        head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      file_ = Fd{fd};
    }
    if (got > 0) input_.append(part.data(), static_cast<std::size_t>(got));
    read_request();
  }

  void answer(std::size_t bytes) {
    output_ = answer_request(std::string_view{input_}.substr(0, bytes - 1), *handlers_, std::move(file_)) + "\n";
    input_.erase(0, bytes);
    asio::async_write(socket_, asio::buffer(output_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->read_request();
      }
    });
  }

  /// The end of the request is not known, so this is the connection's last answer.
  void refuse_longer() {
    output_ = refuse_long_request() + "\n";
    asio::async_write(socket_, asio::buffer(output_), [self = shared_from_this()](error_code, std::size_t) {});
  }

  Local::socket socket_;
  const ControlHandlers* handlers_;
  std::string input_;
  Fd file_;  ///< For the request that is being read.
  std::string output_;
};

// NOLINTEND(misc-no-recursion)

/// The listening socket; removes its file at the end.
class ControlServer {
 public:
  ControlServer(asio::io_context& io, ControlHandlers handlers, Log& log)
      : acceptor_{io}, accept_again_{io}, handlers_{std::move(handlers)}, log_{&log} {}
  ~ControlServer() {
    if (!path_.empty()) {
      ::unlink(path_.c_str());
    }
  }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;
  ControlServer(ControlServer&&) = delete;
  ControlServer& operator=(ControlServer&&) = delete;

  Result<void> listen(const std::string& path) {
    const auto refuse = [&path](const std::string& reason) {
      return usage_error(fmt::format("cannot serve the control socket {}: {}", printable(path), reason),
                         "give a new path in a writable directory with --control");
    };
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return refuse(fmt::format("its {} characters are more than the {} that a socket's path may have", path.size(),
                                sizeof(sockaddr_un::sun_path) - 1));
    }
    remove_if_stale(path);
    error_code error;
    acceptor_.open(Local{}, error);
    const auto old_mask = ::umask(0177);  // the owner only
    if (!error) {
      acceptor_.bind(Local::endpoint{path}, error);
    }
    ::umask(old_mask);
    if (error) {
      return refuse(errno_text(error.value()));
    }
    path_ = path;
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return refuse(errno_text(error.value()));
    }
    accept();
    return {};
  }
  /// Somebody else removes the file.
  void leave_file() { path_.clear(); }

 private:
  /// A socket on which nobody listens was left by a process that died.
  static void remove_if_stale(const std::string& path) {
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) {
      return;
    }
    asio::io_context scratch;
    Local::socket probe{scratch};
    error_code error;
    probe.connect(Local::endpoint{path}, error);
    if (error == asio::error::connection_refused) {
      ::unlink(path.c_str());
    }
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, Local::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) return accept_later(error);
      std::make_shared<ControlClient>(std::move(socket), handlers_)->read_request();
      accept();
    });
  }

  /// The process has no descriptors left, or the kernel no memory: the client waits until there are.
  void accept_later(error_code why) {
    constexpr std::chrono::milliseconds delay{50};
    if (log_->first_time("control.accept"))
      log_->warning("the control socket cannot take a client: {}; trying again", errno_text(why.value()));
    accept_again_.expires_after(delay);
    accept_again_.async_wait([this](error_code error) {
      if (!error) accept();
    });
  }

  Local::acceptor acceptor_;
  asio::steady_timer accept_again_;
  ControlHandlers handlers_;
  Log* log_;
  std::string path_;
};

/// Where the console's output goes.
struct ConsoleEnd {
  Fd fd;
  std::optional<OutputFile> file;  ///< Whose descriptor it is.
};

Result<ConsoleEnd> open_console(const std::string& console) {
  if (console == "stdio") {
    Fd standard_output{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)};
    if (standard_output.valid()) return ConsoleEnd{std::move(standard_output), {}};
    return usage_error("standard output is closed, and the console's output goes there",
                       "open it, or give a file with --console");
  }
  VMM_ASSIGN(auto file, OutputFile::open(console, {.what = "the console file",
                                                   .advice = "give \"stdio\" or a writable path with --console"}));
  VMM_ASSIGN(Fd fd, file.descriptor());
  return ConsoleEnd{std::move(fd), std::move(file)};
}

/// The event loop around one machine. Everything here runs on the session's thread unless said otherwise.
class Session {
 public:
  Session(const SessionOptions& options, ConsoleEnd console)
      : options_{options},
        console_file_{std::move(console.file)},
        output_{std::move(console.fd),
                [this] { asio::post(io_, [this] { machine_->request_stop(StopReason::user); }); }},
        signals_{io_},
        time_limit_{io_},
        input_{io_},
        input_timer_{io_} {}

  Result<SessionEnd> run(const MachineConfig& config, Log& log) {
    VMM_ASSIGN(machine_,
               Machine::create(
                   config,
                   {.console = [this](std::uint8_t byte) { output_.put({reinterpret_cast<const char*>(&byte), 1}); },
                    .stop_requested = [this] { asio::post(io_, [this] { io_.stop(); }); },
                    .time_up = options_.save_to == nullptr ? std::function<void()>{}
                                                           : [this] { asio::post(io_, [this] { save_at_end(); }); },
                    .confine_vcpu = options_.confinement.vcpu},
                   log));
    if (console_file_) VMM_TRY(console_file_->begin());
    // First, so that no signal leaves a socket behind.
    watch_signals();
    ControlServer control{io_, handlers(), log};
    if (!options_.control_path.empty()) {
      VMM_TRY(control.listen(options_.control_path));
    }
    const RawTerminal terminal{options_.console == "stdio" ? STDIN_FILENO : -1};
    watch_input();
    if (options_.starting) VMM_TRY(options_.starting());
    VMM_TRY(confine(options_.confinement.process));
    if (options_.confinement.removes_socket) control.leave_file();
    machine_->start();
    VMM_TRY(confine(options_.confinement.session));
    limit_time();
    io_.run();
    const StopReason reason = machine_->wait();
    const auto console = output_.finish();
    const bool is_saved = saved_ && *saved_;
    return SessionEnd{.reason = reason,
                      .failure = saved_ && !is_saved ? saved_->error() : machine_->failure(),
                      .statistics = statistics(),
                      .saved = is_saved,
                      .console = console};
  }

 private:
  static Result<void> confine(const std::function<Result<void>()>& part) { return part ? part() : Result<void>{}; }

  ControlHandlers handlers() {
    return {.status = [this] { return status(); },
            .counters = [this] { return to_json(statistics()); },
            .snapshot = [this](Fd file) { return snapshot(std::move(file), Machine::AfterSnapshot::go_on); },
            .suspend = [this](Fd file) { return snapshot(std::move(file), Machine::AfterSnapshot::stop); },
            .stop = [this] { machine_->request_stop(StopReason::user); }};
  }

  Result<void> snapshot(Fd fd, Machine::AfterSnapshot then) {
    VMM_ASSIGN(auto file, given_snapshot_file(std::move(fd)));
    return machine_->snapshot(std::move(file), then);
  }

  void save_at_end() {
    if (saved_) return;
    Fd fd{::fcntl(options_.save_to->get(), F_DUPFD_CLOEXEC, 0)};
    saved_ = snapshot(std::move(fd), Machine::AfterSnapshot::stop);
    machine_->request_stop(StopReason::user);
  }

  MachineStatistics statistics() {
    MachineStatistics all = machine_->statistics();
    const auto console = output_.totals();
    all.machine.push_back({"console.bytes", console.written});
    all.machine.push_back({"console.dropped_bytes", console.dropped});
    return all;
  }

  MachineStatus status() {
    return {.state = machine_->stop_reason() ? "stopping" : "running",
            .cpus = machine_->cpus(),
            .memory_bytes = machine_->memory().bytes()};
  }

  void watch_signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
      error_code ignored;
      signals_.add(signal, ignored);
    }
    signals_.async_wait([this](error_code error, int) {
      if (!error) {
        machine_->request_stop(StopReason::user);
      }
    });
  }

  void limit_time() {
    if (options_.timeout.count() <= 0) return;
    time_limit_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout));
    time_limit_.async_wait([this](error_code error) {
      if (!error) machine_->request_stop(StopReason::time_limit);
    });
  }

  void watch_input() {
    if (options_.console != "stdio") {
      return;
    }
    const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    error_code error;
    if (fd >= 0 && input_.assign(fd, error)) {
      ::close(fd);  // a regular file or /dev/null: nothing to wait for
      return;
    }
    if (fd >= 0) {
      read_input();
    }
  }

  void read_input() {
    input_.async_wait(asio::posix::descriptor_base::wait_read, [this](error_code error) {
      if (error) {
        return;
      }
      const auto bytes = ::read(input_.native_handle(), buffer_.data(), buffer_.size());
      if (bytes <= 0) {
        return;  // end of input: the guest runs on without a keyboard
      }
      typed(std::span{buffer_}.first(static_cast<std::size_t>(bytes)));
    });
  }

  void typed(std::span<const std::byte> bytes) {
    auto keys = keys_.feed(bytes);
    if (keys.quit) {
      machine_->request_stop(StopReason::user);
      return;
    }
    waiting_.insert(waiting_.end(), keys.input.begin(), keys.input.end());
    hand_over_input();
  }

  /// Gives the guest what it takes; when its receiver is full, tries again a little later.
  void hand_over_input() {
    constexpr std::chrono::milliseconds retry{20};
    const std::size_t taken = machine_->console_input(waiting_);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
    if (waiting_.empty()) {
      read_input();
      return;
    }
    input_timer_.expires_after(retry);
    input_timer_.async_wait([this](error_code error) {
      if (!error) {
        hand_over_input();
      }
    });
  }

  const SessionOptions& options_;
  asio::io_context io_{1};
  std::optional<OutputFile> console_file_;
  BoundedWriter output_;
  asio::signal_set signals_;
  asio::steady_timer time_limit_;
  asio::posix::stream_descriptor input_;
  asio::steady_timer input_timer_;
  EscapeKeys keys_;
  std::array<std::byte, 1024> buffer_{};
  std::vector<std::byte> waiting_;
  std::optional<Result<void>> saved_;  ///< What became of SessionOptions::save_to.
  std::unique_ptr<Machine> machine_;   ///< Last, because its threads use the members above.
};

}  // namespace

Result<SessionEnd> run_session(const MachineConfig& config, const SessionOptions& options, Log& log) try {
  VMM_ASSIGN(auto console, open_console(options.console));
  return Session{options, std::move(console)}.run(config, log);
} catch (const std::exception& error) {
  // Asio throws when the host has no descriptors or memory left.
  return host_error(fmt::format("the event loop failed: {}", error.what()));
}

}  // namespace vmm
