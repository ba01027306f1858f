#include "stat/passes.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace vmm::tool {

Result<int> in_child(const std::function<int()>& act, const Meanwhile& meanwhile) {
  sigset_t waited_for, before;
  ::sigemptyset(&waited_for);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&waited_for, signal);
  ::sigprocmask(SIG_BLOCK, &waited_for, &before);
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(EXIT_FAILURE);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    const int code = act();
    std::fflush(nullptr);
    ::_exit(code);
  }
  const int failure = errno;
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, WNOHANG) == 0) {
    siginfo_t signal{};
    const timespec interval{.tv_sec = meanwhile.interval.count(), .tv_nsec = 0};
    const int number = ::sigtimedwait(&waited_for, &signal, meanwhile.act ? &interval : nullptr);
    if (number < 0 && errno == EAGAIN) meanwhile.act();
    // The child gets the terminal's signals directly.
    if (number > 0 && signal.si_signo != SIGCHLD && signal.si_code != SI_KERNEL) ::kill(child, signal.si_signo);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return host_error("fork", failure);
  if (WIFSIGNALED(status)) return host_error(fmt::format("the machine was ended by signal {}", WTERMSIG(status)));
  return WEXITSTATUS(status);
}

Result<void> rewind_input(long offset) {
  if (::lseek(STDIN_FILENO, offset, SEEK_SET) < 0)
    return host_error("cannot go back to the beginning of standard input for another run", errno);
  return {};
}

}  // namespace vmm::tool
