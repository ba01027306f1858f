#include "control/control_server.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace vmm {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Local = asio::local::stream_protocol;

}  // namespace

// NOLINTBEGIN(misc-no-recursion): Asio calls a handler later, not within the call that takes it.

class ControlClient;

/// The clients of the control socket. There are few at a time, so that the idle ones do not use up the descriptors that
/// the process may have: a new one takes the place of the one that has been idle for longest.
class ControlClients {
 public:
  void add(const std::shared_ptr<ControlClient>& client);
  /// It has sent something, or taken an answer.
  void is_active(const ControlClient& client);

 private:
  static constexpr std::size_t max = 32;
  struct Entry {
    const ControlClient* which;
    std::weak_ptr<ControlClient> client;
  };
  std::list<Entry> entries_;  ///< The one that was active last is at the end.
};

/// One client of the control socket: a request line, a reply line, and so on. Keeps itself alive.
class ControlClient : public std::enable_shared_from_this<ControlClient> {
 public:
  ControlClient(Local::socket socket, const ControlHandlers& handlers, ControlClients& all)
      : socket_{std::move(socket)}, handlers_{&handlers}, all_{&all} {}

  /// Closes the connection, which ends all that it waits for.
  void drop() {
    error_code ignored;
    socket_.close(ignored);
  }

  void read_request() {
    if (const auto end = input_.find('\n'); end != std::string::npos) return answer(end + 1);
    if (input_.size() >= max_request_length) return refuse_longer();
    socket_.async_wait(Local::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (!error) self->receive();
    });
  }

 private:
  /// Receives bytes and the descriptor that came along, which Asio does not support.
  void receive() {
    std::array<char, max_request_length> part;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec into{.iov_base = part.data(), .iov_len = part.size() - input_.size()};
    msghdr message{};
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    // Not CMSG_SPACE(), whose padding has room for a second descriptor, which nobody would close.
    message.msg_controllen = CMSG_LEN(sizeof(int));
    const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
    if (const cmsghdr* const head = got < 0 ? nullptr : CMSG_FIRSTHDR(&message);
        head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      file_ = Fd{fd};
    }
    if (got > 0) {
      input_.append(part.data(), static_cast<std::size_t>(got));
      all_->is_active(*this);
    }
    read_request();
  }

  /// The client's next request is read once this one is answered.
  void answer(std::size_t bytes) {
    const std::string line = input_.substr(0, bytes - 1);
    input_.erase(0, bytes);
    answer_request(line, *handlers_, std::move(file_),
                   [self = shared_from_this()](const std::string& reply) { self->send(reply); });
  }

  void send(const std::string& reply) {
    output_ = reply + "\n";
    asio::async_write(socket_, asio::buffer(output_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) {
        self->all_->is_active(*self);
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
  ControlClients* all_;
  std::string input_;
  Fd file_;  ///< For the request that is being read.
  std::string output_;
};

// NOLINTEND(misc-no-recursion)

void ControlClients::add(const std::shared_ptr<ControlClient>& client) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.client.expired(); });
  if (entries_.size() >= max) {
    if (const auto idle = entries_.front().client.lock()) idle->drop();
    entries_.pop_front();
  }
  entries_.push_back({.which = client.get(), .client = client});
}

void ControlClients::is_active(const ControlClient& client) {
  const auto found = std::ranges::find(entries_, &client, &Entry::which);
  if (found != entries_.end()) entries_.splice(entries_.end(), entries_, found);
}

struct ControlServer::Listener {
 public:
  Listener(asio::io_context& io, ControlHandlers handlers, Log& log)
      : acceptor_{io}, accept_again_{io}, handlers_{std::move(handlers)}, log_{&log} {}
  ~Listener() {
    if (!path_.empty()) {
      ::unlink(path_.c_str());
    }
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  Listener(Listener&&) = delete;
  Listener& operator=(Listener&&) = delete;

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
      const auto client = std::make_shared<ControlClient>(std::move(socket), handlers_, clients_);
      clients_.add(client);
      client->read_request();
      accept();
    });
  }

  /// The process has no descriptors left, or the kernel no memory: the client waits until there are.
  void accept_later(error_code why) {
    constexpr std::chrono::milliseconds delay{50};
    log_->once(LogLevel::warning, "control.accept", "the control socket cannot take a client: {}; trying again",
               errno_text(why.value()));
    accept_again_.expires_after(delay);
    accept_again_.async_wait([this](error_code error) {
      if (!error) accept();
    });
  }

  Local::acceptor acceptor_;
  asio::steady_timer accept_again_;
  ControlHandlers handlers_;
  ControlClients clients_;
  Log* log_;
  std::string path_;
};

ControlServer::ControlServer(asio::io_context& io, ControlHandlers handlers, Log& log)
    : listener_{std::make_unique<Listener>(io, std::move(handlers), log)} {}
ControlServer::~ControlServer() = default;

Result<void> ControlServer::listen(const std::string& path) { return listener_->listen(path); }
void ControlServer::leave_file() { listener_->leave_file(); }

}  // namespace vmm
