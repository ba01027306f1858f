#include "control/session.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

// Boost.Asio stays in this file and control_server.cpp: it costs seconds of compile time.
#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "control/bounded_writer.hpp"
#include "control/console.hpp"
#include "control/control_server.hpp"
#include "control/worker.hpp"
#include "files/output_file.hpp"
#include "snapshot/snapshot_file.hpp"

namespace vmm {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// Where the console's output goes.
struct ConsoleEnd {
  Fd fd;
  std::optional<OutputFile> file;  ///< Whose descriptor it is.
};

Result<ConsoleEnd> open_console(const std::string& console) {
  if (console == "stdio") {
    Fd standard_output{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)};
    const bool takes_output = (::fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY;
    if (standard_output.valid() && takes_output) return ConsoleEnd{std::move(standard_output), {}};
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
        grace_{io_},
        input_{io_},
        input_timer_{io_} {}

  Result<SessionEnd> run(const MachineConfig& config, Log& log) {
    VMM_ASSIGN(machine_,
               Machine::create(
                   config,
                   {.console = [this](std::uint8_t byte) { output_.put({reinterpret_cast<const char*>(&byte), 1}); },
                    .stop_requested = [this] { asio::post(io_, [this] { end_loop(); }); },
                    .time_up = options_.save_to == nullptr ? std::function<void()>{}
                                                           : [this] { asio::post(io_, [this] { save_at_end(); }); },
                    .confine_vcpu = options_.confinement.vcpu,
                    .perf_hosts = options_.confinement.perf_hosts},
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
    const bool writes = abandon_snapshot();
    const StopReason reason = machine_->wait();
    const auto console = output_.finish();
    const bool is_saved = saved_ && *saved_;
    SessionEnd end{.reason = reason,
                   .failure = saved_ && !is_saved ? saved_->error() : machine_->failure(),
                   .statistics = statistics(),
                   .saved = is_saved,
                   .console = console};
    if (writes) (void)machine_.release();  // a thread still reads its memory, and ends with the process
    return end;
  }

 private:
  static Result<void> confine(const std::function<Result<void>()>& part) { return part ? part() : Result<void>{}; }

  ControlHandlers handlers() {
    return {.status = [this] { return status(); },
            .counters = [this] { return to_json(statistics()); },
            .snapshot =
                [this](Fd file, SnapshotDone done) {
                  snapshot(std::move(file), Machine::AfterSnapshot::go_on, std::move(done));
                },
            .suspend =
                [this](Fd file, SnapshotDone done) {
                  snapshot(std::move(file), Machine::AfterSnapshot::stop, std::move(done));
                },
            .stop = [this] { machine_->request_stop(StopReason::user); }};
  }

  /// A snapshot that the worker writes.
  struct Writing {
    WholeFile file;
    MachineImage image;
    Machine::AfterSnapshot then;
    SnapshotDone done;
    Result<void> written{};
  };

  void snapshot(Fd fd, Machine::AfterSnapshot then, SnapshotDone done) {
    if (writing_)
      return done(usage_error("another snapshot of this guest is being written", "try again once it is complete"));
    auto file = given_snapshot_file(std::move(fd));
    if (!file) return done(Failure{file.error()});
    auto image = machine_->pause();
    if (!image) return done(Failure{image.error()});
    writing_ = std::make_shared<Writing>(Writing{std::move(*file), std::move(*image), then, std::move(done)});
    worker_.start(
        [writing = writing_, memory = &machine_->memory()] {
          writing->written = write_snapshot(std::move(writing->file), writing->image, *memory);
        },
        [this] { asio::post(io_, [this] { end_snapshot(); }); });
  }

  void end_snapshot() {
    const auto writing = std::exchange(writing_, nullptr);
    if (writing->written && writing->then == Machine::AfterSnapshot::stop) machine_->request_stop(StopReason::user);
    machine_->resume();
    writing->done(writing->written);
    if (machine_->stop_reason()) io_.stop();
  }

  /// The machine is to stop.
  void end_loop() {
    constexpr std::chrono::milliseconds patience{500};
    if (!writing_) return io_.stop();
    grace_.expires_after(patience);
    grace_.async_wait([this](error_code error) {
      if (!error) io_.stop();
    });
  }

  /// Returns whether a snapshot is still being written, by a thread that nobody waits for any longer.
  bool abandon_snapshot() {
    if (!worker_.abandon()) return false;
    if (options_.save_to != nullptr && !saved_)
      saved_ = host_error("the machine was stopped before its snapshot was written");
    machine_->resume();
    return true;
  }

  void save_at_end() {
    if (saved_ || writing_) return;
    Fd fd{::fcntl(options_.save_to->get(), F_DUPFD_CLOEXEC, 0)};
    snapshot(std::move(fd), Machine::AfterSnapshot::stop, [this](const Result<void>& written) {
      saved_ = written;
      machine_->request_stop(StopReason::user);
    });
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
  asio::steady_timer grace_;  ///< For a snapshot that is being written when the machine stops.
  asio::posix::stream_descriptor input_;
  asio::steady_timer input_timer_;
  EscapeKeys keys_;
  std::array<std::byte, 1024> buffer_{};
  std::vector<std::byte> waiting_;
  std::optional<Result<void>> saved_;  ///< What became of SessionOptions::save_to.
  std::shared_ptr<Writing> writing_;
  Worker worker_;
  std::unique_ptr<Machine> machine_;  ///< Last, because its threads use the members above.
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
