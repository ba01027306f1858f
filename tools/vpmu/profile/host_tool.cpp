#include "profile/host_tool.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>

#include "kvm/fd.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_said_length = 2000;

/// A pipe: our end, and the end that the program gets.
Result<std::array<Fd, 2>> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return host_error("pipe2", errno);
  return std::array{Fd{ends[0]}, Fd{ends[1]}};
}

/// Without the user's settings, pager and colours; and no server is asked for symbols.
std::vector<std::string> environment() {
  std::vector<std::string> all{"LC_ALL=C", "PERF_CONFIG=/dev/null", "DEBUGINFOD_URLS=", "PAGER=cat", "TERM=dumb"};
  for (const char* const name : {"PATH", "HOME"})
    if (const char* const value = std::getenv(name)) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

Result<pid_t> start(std::vector<std::string> command, const Fd& output, const Fd& errors) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors.get(), STDERR_FILENO);
  std::vector<std::string> variables = environment();
  pid_t child{};
  // This process ignores SIGPIPE; the tool shall not.
  posix_spawnattr_t as_usual;
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::posix_spawnattr_init(&as_usual);
  ::posix_spawnattr_setsigdefault(&as_usual, &pipe);
  ::posix_spawnattr_setflags(&as_usual, POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawnp(&child, command.front().c_str(), &actions, &as_usual, pointers(command).data(),
                                   pointers(variables).data());
  ::posix_spawnattr_destroy(&as_usual);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return host_error(command.front(), error, "install it");
  return child;
}

/// Reads both pipes until they end, or until `take` returns false: then returns false.
bool read_both(std::array<Fd, 2> ends, const std::function<bool(std::string_view)>& take, std::string& said) {
  std::array<pollfd, 2> waiting{pollfd{.fd = ends[0].get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = ends[1].get(), .events = POLLIN, .revents = 0}};
  std::array<char, 65536> part{};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      const ssize_t bytes = ::read(waiting[i].fd, part.data(), part.size());
      if (bytes <= 0 && errno != EINTR) waiting[i].fd = -1;
      if (bytes <= 0) continue;
      const std::string_view text{part.data(), static_cast<std::size_t>(bytes)};
      if (i == 0 && !take(text)) return false;
      if (i == 1) said.append(text);
      if (said.size() > max_said_length) said.erase(0, said.size() - max_said_length);
    }
  }
  return true;
}

}  // namespace

Result<ToolEnd> run_tool(const std::vector<std::string>& command, const std::function<bool(std::string_view)>& take) {
  VMM_ASSIGN(auto output, make_pipe());
  VMM_ASSIGN(auto errors, make_pipe());
  VMM_ASSIGN(const pid_t child, start(command, output[1], errors[1]));
  output[1] = Fd{};
  errors[1] = Fd{};
  ToolEnd end;
  const bool read_all = read_both({std::move(output[0]), std::move(errors[0])}, take, end.said);
  if (!read_all) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return host_error("waitpid", errno);
  if (!read_all) return end;
  if (WIFSIGNALED(status))
    return host_error(fmt::format("{} was ended by signal {}", command.front(), WTERMSIG(status)));
  end.exit_code = WEXITSTATUS(status);
  return end;
}

}  // namespace vmm::tool
