#include "exec/guest/session.hpp"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace vmm::tool::guest {

Result<void> Session::run() {
  sigset_t children{};
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  const Fd signals{::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK)};
  if (!signals.valid()) return host_error("listening for ended processes", errno);
  reap();  // the command may already have ended
  while ((!status_ || !is_passed_on()) && !control_->gone()) wait(signals.get());
  if (control_->gone()) {
    end_all();
    return {};
  }
  ::sync();  // so that what the command wrote to the host's directories is there when the host hears of its end
  control_->say(
      WrittenLine{.output = command_.output->written(), .error = command_.error ? command_.error->written() : 0});
  if (WIFSIGNALED(*status_))
    control_->say(KilledLine{WTERMSIG(*status_)});
  else
    control_->say(ExitLine{WEXITSTATUS(*status_)});
  return {};
}

void Session::wait(int signals) {
  std::array<pollfd, 8> all{};
  all[0] = {.fd = signals, .events = POLLIN};
  all[1] = {.fd = control_->port(), .events = POLLIN};
  const std::array<std::optional<Stream>*, 3> streams{&command_.input, &command_.output, &command_.error};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const auto ends = *streams[i] ? (*streams[i])->waits_for() : std::array{pollfd{.fd = -1}, pollfd{.fd = -1}};
    all[2 + 2 * i] = ends[0];
    all[3 + 2 * i] = ends[1];
  }
  ::poll(all.data(), all.size(), -1);
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (*streams[i]) (*streams[i])->go_on({all[2 + 2 * i], all[3 + 2 * i]});
  if (command_.terminal.valid() && command_.output->done() && !status_) {
    // The host has stopped reading the terminal's output: hang up.
    command_.input->close();
    command_.terminal_user.reset();
    command_.terminal.reset();
  }
  if (all[1].revents != 0) control_->listen([this](const HostLine& line) { take(line); });
  if (all[0].revents != 0) {
    signalfd_siginfo dropped{};
    while (::read(signals, &dropped, sizeof dropped) > 0) continue;
    reap();
  }
}

void Session::take(const HostLine& line) {
  if (status_) return;
  if (const auto* const signal = std::get_if<SignalLine>(&line)) {
    ::kill(-command_.process, signal->number);
  } else if (const auto* const window = std::get_if<WindowLine>(&line);
             window != nullptr && command_.terminal.valid()) {
    const winsize size{.ws_row = static_cast<unsigned short>(window->size.rows),
                       .ws_col = static_cast<unsigned short>(window->size.columns)};
    ::ioctl(command_.terminal.get(), TIOCSWINSZ, &size);
  } else if (const auto* const eof = std::get_if<EofLine>(&line)) {
    command_.input->end_behind(eof->bytes);
  }
}

void Session::reap() {
  int status = 0;
  for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (ended == command_.process) status_ = status;
  if (status_) end_all();
}

/// Ends what the command has left behind, as a container does; then no process holds a stream open.
void Session::end_all() {
  ::kill(-1, SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) continue;
  command_.input->close();
  command_.terminal_user.reset();
}

bool Session::is_passed_on() const { return command_.output->done() && (!command_.error || command_.error->done()); }

}  // namespace vmm::tool::guest
