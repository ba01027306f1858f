#include "exec/session.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <deque>
#include <utility>

// Boost.Asio stays in this file: it costs seconds of compile time.
#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include "control/console.hpp"
#include "kvm/exit.hpp"

namespace vmm::tool {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr unsigned max_signals = 3;

// NOLINTBEGIN(misc-no-recursion): Asio calls a handler later, not from the call that it is given to.

/// The event loop around one machine. Everything here runs on the session's thread unless said otherwise.
class ExecSession {
 public:
  explicit ExecSession(ExecSessionOptions options)
      : options_{std::move(options)}, signals_{io_}, time_limit_{io_}, look_again_{io_}, channel_{io_} {}

  Result<ExecEnd> run(const MachineConfig& config, Log& log) {
    VMM_ASSIGN(machine_, Machine::create(config,
                                         {.console = [this](std::uint8_t byte) { console(byte); },
                                          .stop_requested = [this] { asio::post(io_, [this] { io_.stop(); }); },
                                          .confine_vcpu = options_.confinement.vcpu,
                                          .perf_hosts = options_.confinement.perf_hosts,
                                          .make_devices = options_.make_devices},
                                         log));
    if (options_.when_made) options_.when_made();
    watch_signals();
    const RawTerminal terminal{options_.terminal};
    channel_.assign(options_.channel.release());
    channel_.non_blocking(true);
    read_channel();
    options_.when_input_ends([this](std::uint64_t bytes) { input_ended(bytes); });
    if (options_.keep) options_.when_ready([this] { ready(); });
    VMM_TRY(confine(options_.confinement.process));
    machine_->start();
    VMM_TRY(confine(options_.confinement.session));
    limit_time();
    io_.run();
    end_.reason = machine_->wait();
    end_.failure = machine_->failure();
    end_.statistics = machine_->statistics();
    return end_;
  }

 private:
  static Result<void> confine(const std::function<Result<void>()>& part) { return part ? part() : Result<void>{}; }

  void console(std::uint8_t byte) const {
    const char character = static_cast<char>(byte);
    if (options_.console) options_.console({&character, 1});
  }

  void watch_signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH}) {
      error_code ignored;
      signals_.add(signal, ignored);
    }
    wait_for_signal();
  }

  void wait_for_signal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      took(signal);
      wait_for_signal();
    });
  }

  void took(int signal) {
    if (signal == SIGWINCH) return tell_size();
    if (!end_.started || ++signals_taken_ >= max_signals) return machine_->request_stop(StopReason::user);
    send(SignalLine{.number = signal});
  }

  void tell_size() {
    if (const auto size = window_size(options_.terminal))
      send(WindowLine{.size = {.rows = size->rows, .columns = size->columns}});
  }

  void send(const HostLine& line) {
    to_send_.push_back(write_line(line));
    if (to_send_.size() == 1) send_first();
  }
  void send_first() {
    asio::async_write(channel_, asio::buffer(to_send_.front()), [this](error_code error, std::size_t) {
      if (error) return;
      to_send_.pop_front();
      if (!to_send_.empty()) send_first();
    });
  }

  /// Called on the device's thread before the guest runs on, so that in virtual time the line arrives at the same
  /// moment in each run. If the channel has no room, the line is sent when it has.
  void input_ended(std::uint64_t bytes) {
    const HostLine line = EofLine{.bytes = bytes};
    const std::string text = write_line(line);
    if (::write(channel_.native_handle(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      asio::post(io_, [this, line] { send(line); });
  }

  /// As input_ended(): in virtual time the machine is saved at the same moment in each run.
  void ready() {
    machine_->ask_to_pause();
    asio::post(io_, [this] { options_.keep(*machine_); });
  }

  void read_channel() {
    channel_.async_read_some(asio::buffer(part_), [this](error_code error, std::size_t bytes) {
      if (error) return;
      lines_.add({part_.data(), bytes});
      while (const auto line = lines_.take_line()) heard(*line);
      read_channel();
    });
  }

  /// A line that cannot be read is skipped: the guest's init is broken or hostile, but the next line may be better.
  void heard(const std::string& text) {
    const auto line = read_guest_line(text);
    if (!line) return;
    std::visit(overload{[](const ReadyLine&) {},  // GuestDevices has heard it
                        [this](const StartedLine&) { end_.started = true; },
                        [this](const WrittenLine& written) { written_ = written; },
                        [this](const ExitLine& exit) {
                          end_.exit_code = exit.code;
                          let_go();
                        },
                        [this](const KilledLine& killed) {
                          end_.signal = killed.signal;
                          let_go();
                        },
                        [this](const ErrorLine& error) {
                          if (end_.error.empty()) end_.error = error.text;
                        }},
               *line);
  }

  /// Permits the power-off once all that the guest has written has been passed on.
  void let_go() {
    constexpr std::chrono::milliseconds again{2};
    const WrittenLine passed = options_.passed_on();
    if (passed.output >= written_.output && passed.error >= written_.error) return send(OffLine{});
    look_again_.expires_after(again);
    look_again_.async_wait([this](error_code error) {
      if (!error) let_go();
    });
  }

  void limit_time() {
    if (options_.timeout.count() <= 0) return;
    time_limit_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout));
    time_limit_.async_wait([this](error_code error) {
      if (!error) time_is_over();
    });
  }

  void time_is_over() {
    constexpr std::chrono::seconds more{20};
    if (!options_.ends_by_signal || !end_.started || std::exchange(end_.ran_out, true))
      return machine_->request_stop(StopReason::time_limit);
    send(SignalLine{.number = SIGTERM});
    time_limit_.expires_after(more);
    time_limit_.async_wait([this](error_code error) {
      if (!error) time_is_over();
    });
  }

  ExecSessionOptions options_;
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::steady_timer time_limit_, look_again_;
  asio::posix::stream_descriptor channel_;
  std::array<char, 1024> part_{};
  LineBuffer lines_;
  WrittenLine written_{};
  std::deque<std::string> to_send_;
  unsigned signals_taken_{};
  ExecEnd end_{};
  std::unique_ptr<Machine> machine_;  ///< Last: its threads use what stands above.
};

// NOLINTEND(misc-no-recursion)

}  // namespace

Result<ExecEnd> run_exec_session(const MachineConfig& config, ExecSessionOptions options, Log& log) try {
  return ExecSession{std::move(options)}.run(config, log);
} catch (const std::exception& error) {
  // Asio throws when the host has no descriptors or memory left.
  return host_error(fmt::format("the event loop failed: {}", error.what()));
}

}  // namespace vmm::tool
