#include "exec/guest/command.hpp"

#include <cpuid.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "exec/guest/control.hpp"
#include "exec/guest/system.hpp"
#include "pmu/task_mark.hpp"

namespace vmm::tool::guest {
namespace {

constexpr gid_t terminal_group = 5;  // the group of terminals in devpts, as it is mounted
constexpr mode_t terminal_mode = 0620;

enum class Step { terminal, identity, directory, execute };

/// What the child reports if it cannot execute the command.
struct ChildFailure {
  Step step{};
  int error{};
};

/// The command's side of its streams.
struct Ends {
  Fd input, output, error;
};

Result<std::pair<Fd, Fd>> make_pipe(uid_t user, gid_t group) {
  std::array<int, 2> ends{};
  // Owned by the command's user, who may open it again by /dev/stderr and the like.
  if (::pipe2(ends.data(), O_CLOEXEC) != 0 || ::fchown(ends[0], user, group) != 0)
    return host_error("making a pipe", errno);
  return std::pair{Fd{ends[0]}, Fd{ends[1]}};
}

Result<void> stop_blocking(const Fd& file) {
  if (::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) | O_NONBLOCK) != 0)
    return host_error("setting up a stream", errno);
  return {};
}

Result<Fd> copy_of(const Fd& file) {
  Fd copy{::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)};
  if (!copy.valid()) return host_error("setting up a stream", errno);
  return copy;
}

Result<Ends> connect_pipes(Command& command, StreamPorts ports, const ExecRequest& request) {
  VMM_ASSIGN(auto input, make_pipe(request.user, request.group));
  VMM_ASSIGN(auto output, make_pipe(request.user, request.group));
  VMM_ASSIGN(auto error, make_pipe(request.user, request.group));
  VMM_TRY(stop_blocking(input.second));
  VMM_TRY(stop_blocking(output.first));
  VMM_TRY(stop_blocking(error.first));
  command.input.emplace(std::move(ports.input), std::move(input.second), AtEnd::close_sink);
  command.output.emplace(std::move(output.first), std::move(ports.output), AtEnd::keep_sink);
  command.error.emplace(std::move(error.first), std::move(ports.error), AtEnd::keep_sink);
  return Ends{std::move(input.first), std::move(output.second), std::move(error.second)};
}

Result<Ends> connect_terminal(Command& command, StreamPorts ports, const ExecRequest& request) {
  VMM_ASSIGN(command.terminal, open_file("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK));
  int unlock = 0;
  ::ioctl(command.terminal.get(), TIOCSPTLCK, &unlock);
  command.terminal_user = Fd{::ioctl(command.terminal.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)};
  if (!command.terminal_user.valid()) return host_error("making a terminal", errno);
  const winsize size{.ws_row = static_cast<unsigned short>(request.terminal->rows),
                     .ws_col = static_cast<unsigned short>(request.terminal->columns)};
  ::ioctl(command.terminal.get(), TIOCSWINSZ, &size);
  if (::fchown(command.terminal_user.get(), request.user, terminal_group) != 0 ||
      ::fchmod(command.terminal_user.get(), terminal_mode) != 0)
    return host_error("giving the terminal to the user", errno);
  termios settings{};
  ::tcgetattr(command.terminal_user.get(), &settings);
  VMM_ASSIGN(Fd to, copy_of(command.terminal));
  VMM_ASSIGN(Fd from, copy_of(command.terminal));
  command.input.emplace(std::move(ports.input), std::move(to), AtEnd::close_sink,
                        std::string(1, static_cast<char>(settings.c_cc[VEOF])));
  command.output.emplace(std::move(from), std::move(ports.output), AtEnd::keep_sink);
  VMM_ASSIGN(Fd input, copy_of(command.terminal_user));
  VMM_ASSIGN(Fd output, copy_of(command.terminal_user));
  VMM_ASSIGN(Fd error, copy_of(command.terminal_user));
  return Ends{std::move(input), std::move(output), std::move(error)};
}

[[noreturn]] void fail_child(int status, Step step) {
  const ChildFailure failure{step, errno};
  const auto ignored = ::write(status, &failure, sizeof failure);
  static_cast<void>(ignored);
  ::_exit(exec_init_failed);
}

void take_streams(const Ends& ends, const ExecRequest& request, int status) {
  ::setsid();
  if (request.terminal && ::ioctl(ends.input.get(), TIOCSCTTY, 0) != 0) fail_child(status, Step::terminal);
  ::dup2(ends.input.get(), STDIN_FILENO);
  ::dup2(ends.output.get(), STDOUT_FILENO);
  ::dup2(ends.error.get(), STDERR_FILENO);
}

/// As execve() takes them; valid as long as the strings.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& text : strings) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// Tells who counts a command beside the guest that it begins with the next system call.
void mark_begin() {
  std::array<unsigned, 4> answer{};
  __cpuid(task_mark_leaf, answer[0], answer[1], answer[2], answer[3]);
}

/// Comes back if it cannot be executed. Not execvp() alone: it would try each directory, and that is not the command's.
void execute(const std::string& name, char* const* arguments) {
  const char* const path = ::getenv("PATH");
  std::string_view rest = path == nullptr || name.find('/') != std::string::npos ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::string file = std::string{end == 0 ? "." : rest.substr(0, end)} + '/' + name;
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (::access(file.c_str(), X_OK) != 0) continue;
    mark_begin();
    ::execv(file.c_str(), arguments);
  }
  mark_begin();
  ::execvp(name.c_str(), arguments);
}

[[noreturn]] void be_command(ExecRequest request, const Ends& ends, int control, int status) {
  take_streams(ends, request, status);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none{};
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::umask(request.file_mode_mask);
  if (::setgroups(request.groups.size(), request.groups.data()) != 0 || ::setgid(request.group) != 0 ||
      ::setuid(request.user) != 0)
    fail_child(status, Step::identity);
  if (::chdir(request.directory.c_str()) != 0) fail_child(status, Step::directory);
  const auto arguments = pointers(request.arguments);
  auto environment = pointers(request.environment);
  environ = environment.data();  // with the PATH in which the command is looked for
  write_to_port(control, write_line(StartedLine{}));
  execute(request.arguments.front(), arguments.data());
  fail_child(status, Step::execute);
}

NotStarted explain(const ExecRequest& request, const ChildFailure& failure) {
  const std::string& name = request.arguments.front();
  const auto because = [&failure](const std::string& what, int code = exec_init_failed) {
    return NotStarted{{.what = what, .system_errno = failure.error}, code};
  };
  switch (failure.step) {
    case Step::terminal: return because("taking the terminal");
    case Step::identity: return because("becoming user " + std::to_string(request.user));
    case Step::directory: return because("changing to the directory " + request.directory);
    case Step::execute: break;
  }
  if (failure.error != ENOENT) return because("executing " + name, exec_not_executable);
  if (name.find('/') != std::string::npos) return because("executing " + name, exec_not_found);
  return NotStarted{{.what = name + ": command not found"}, exec_not_found};
}

}  // namespace

tl::expected<Command, NotStarted> start_command(const ExecRequest& request, StreamPorts ports, int control) {
  const auto failed = [](Error error) { return tl::unexpected{NotStarted{std::move(error)}}; };
  Command command;
  auto ends = request.terminal ? connect_terminal(command, std::move(ports), request)
                               : connect_pipes(command, std::move(ports), request);
  if (!ends) return failed(std::move(ends).error());
  auto status = make_pipe(0, 0);
  if (!status) return failed(std::move(status).error());
  command.process = ::fork();
  if (command.process < 0) return failed({.what = "starting a process", .system_errno = errno});
  if (command.process == 0) be_command(request, *ends, control, status->second.get());
  *ends = {};
  status->second.reset();
  ChildFailure failure;
  if (::read(status->first.get(), &failure, sizeof failure) != sizeof failure) return command;
  ::waitpid(command.process, nullptr, 0);
  return tl::unexpected{explain(request, failure)};
}

}  // namespace vmm::tool::guest
