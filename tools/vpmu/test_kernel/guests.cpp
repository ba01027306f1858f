#include "test_kernel/guests.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <list>
#include <span>

#include <fmt/format.h>

#include "files/output_file.hpp"
#include "kvm/fd.hpp"

// The checker: checker_image.S.
extern "C" const std::byte vpmu_kernel_checker[], vpmu_kernel_checker_end[];

namespace vmm::tool {
namespace {

constexpr std::size_t max_output = 1U << 20;

/// Reads the signals that would end this process from a descriptor, during its lifetime.
class EndingSignals {
 public:
  EndingSignals() {
    sigset_t ending{};
    ::sigemptyset(&ending);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ending, signal);
    ::sigprocmask(SIG_BLOCK, &ending, &before_);
    fd_ = Fd{::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK)};
  }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;
  ~EndingSignals() {
    signalfd_siginfo dropped{};
    while (::read(fd_.get(), &dropped, sizeof dropped) > 0) continue;
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  Fd fd_;
};

/// The reading end of a pipe, and what has been read from it.
struct Stream {
  Fd fd;
  std::string text;

  void read_on() {
    std::array<char, 4096> part{};
    for (ssize_t bytes = 0; (bytes = ::read(fd.get(), part.data(), part.size())) > 0;)
      if (text.size() < max_output) text.append(part.data(), static_cast<std::size_t>(bytes));
  }
};

/// One process; the destructor kills it if it still runs.
struct Guest {
  std::size_t number{};
  pid_t process{-1};
  Fd ended;  ///< A pidfd.
  Stream output, messages;

  Guest() = default;
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  ~Guest() {
    if (process < 0) return;
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
};

Result<Fd> open_pipe(Stream& reader) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return host_error("pipe2", errno);
  reader.fd = Fd{ends[0]};
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Fd{ends[1]};
}

/// In the child: executes this program with other arguments, and dies with its parent.
[[noreturn]] void become(std::vector<std::string> arguments, int output, int messages, const sigset_t& signals,
                         pid_t parent) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0) ::_exit(127);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(messages, STDERR_FILENO);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  if (::getppid() == parent) ::execv("/proc/self/exe", pointers.data());
  ::_exit(127);
}

Result<void> start(Guest& guest, const std::vector<std::string>& arguments, const sigset_t& signals) {
  VMM_ASSIGN(const Fd output, open_pipe(guest.output));
  VMM_ASSIGN(const Fd messages, open_pipe(guest.messages));
  const pid_t parent = ::getpid();
  guest.process = ::fork();
  if (guest.process < 0) return host_error("fork", errno);
  if (guest.process == 0) become(arguments, output.get(), messages.get(), signals, parent);
  guest.ended = Fd{static_cast<int>(::syscall(SYS_pidfd_open, guest.process, 0))};
  if (!guest.ended.valid()) return host_error("pidfd_open", errno);
  return {};
}

/// Reaps a process that has ended, and returns how it ended.
GuestEnd end_of(Guest& guest) {
  int status = 0;
  ::waitpid(std::exchange(guest.process, -1), &status, 0);
  guest.output.read_on();
  guest.messages.read_on();
  const bool exited = WIFEXITED(status);
  return {.output = std::move(guest.output.text),
          .messages = std::move(guest.messages.text),
          .how = exited ? fmt::format("exit code {}", WEXITSTATUS(status)) : fmt::format("signal {}", WTERMSIG(status)),
          .is_success = exited && WEXITSTATUS(status) == 0};
}

}  // namespace

Result<void> run_guests(const std::vector<std::vector<std::string>>& arguments, unsigned at_once,
                        const std::function<void(std::size_t number, const GuestEnd& end)>& ended) {
  const EndingSignals signals;
  std::list<Guest> running;
  for (std::size_t next = 0; next < arguments.size() || !running.empty();) {
    while (next < arguments.size() && running.size() < std::max(1U, at_once)) {
      Guest& guest = running.emplace_back();
      guest.number = next;
      VMM_TRY(start(guest, arguments[next++], signals.before()));
    }
    std::vector<pollfd> waits{{.fd = signals.fd(), .events = POLLIN, .revents = 0}};
    for (const Guest& guest : running) {
      waits.push_back({.fd = guest.ended.get(), .events = POLLIN, .revents = 0});
      waits.push_back({.fd = guest.output.fd.get(), .events = POLLIN, .revents = 0});
      waits.push_back({.fd = guest.messages.fd.get(), .events = POLLIN, .revents = 0});
    }
    ::poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) return host_error("stopped by a signal");
    std::size_t at = 1;
    for (auto guest = running.begin(); guest != running.end(); at += 3) {
      for (Stream* const stream : {&guest->output, &guest->messages}) stream->read_on();
      // Without this, a stream at its end would wake poll() again and again.
      if ((waits[at + 1].revents & POLLHUP) != 0) guest->output.fd.reset();
      if ((waits[at + 2].revents & POLLHUP) != 0) guest->messages.fd.reset();
      if (waits[at].revents != 0) {
        ended(guest->number, end_of(*guest));
        guest = running.erase(guest);
      } else {
        ++guest;
      }
    }
  }
  return {};
}

Result<CheckerRoot> CheckerRoot::create() {
  constexpr mode_t readable = 0755;
  VMM_ASSIGN(auto directory, WorkDirectory::create());
  CheckerRoot root{std::move(directory)};
  const std::string file = root.path() + program;
  const std::span<const std::byte> image{vpmu_kernel_checker, vpmu_kernel_checker_end};
  const Fd fd{::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, readable)};
  if (!fd.valid()) return host_error("making " + file, errno);
  const int failure = write_all(fd.get(), {reinterpret_cast<const char*>(image.data()), image.size()});
  if (failure != 0) return host_error("writing " + file, failure);
  if (::fchmod(fd.get(), readable) != 0 || ::chmod(root.path().c_str(), readable) != 0)
    return host_error("making " + file + " a program", errno);
  return root;
}

}  // namespace vmm::tool
