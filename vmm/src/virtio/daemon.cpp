#include "virtio/daemon.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include "virtio/mode_filter.hpp"

namespace vmm::virtio {
namespace {

/// What the program or its supervisor reports while starting, as sent through a pipe.
struct Report {
  enum class Step : std::int32_t { started, fork, namespaces, user_map, read_only, filter, execute };
  Step step;
  std::int32_t why;  ///< errno.
  std::int32_t process;
};

/// All that the child processes need, prepared before the fork: after it nothing may be allocated.
struct Plan {
  std::vector<char*> arguments;
  std::string user_map, group_map;
  DaemonLaunch::Surroundings surroundings;
  bool is_root, refuses_setuid_bits;
  int keeps, messages, lifeline, report;
};

constexpr int lifeline_descriptor = 3;
constexpr int by_itself_ms = 300, asked_ms = 5'000;

void tell(int to, Report report) { (void)!::write(to, &report, sizeof report); }

bool write_file(const char* path, const std::string& text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  return file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
         ::close(file) == 0;
}

/// In the program's process: restricts what it may do. Empty on success.
std::optional<Report::Step> set_apart(const Plan& plan) {
  using Surroundings = DaemonLaunch::Surroundings;
  using Step = Report::Step;
  if (plan.surroundings == Surroundings::as_here) return {};
  constexpr int apart = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC;
  if (::unshare(plan.is_root ? apart : apart | CLONE_NEWUSER) != 0) {
    // In many containers root may not do this. The program then shares the container's namespaces.
    if (plan.is_root && plan.surroundings == Surroundings::apart) return {};
    return Step::namespaces;
  }
  if (!plan.is_root &&
      (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", plan.user_map) ||
       !write_file("/proc/self/gid_map", plan.group_map)))
    return Step::user_map;
  if (plan.surroundings == Surroundings::apart) return {};
  mount_attr read_only{};
  read_only.attr_set = MOUNT_ATTR_RDONLY;
  // These mounts are private to the program, so none is open for writing yet, which would make this fail.
  if (::syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &read_only, sizeof read_only) != 0)
    return Step::read_only;
  return {};
}

void forget_signals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  // A guest that writes a large file shall get EFBIG (`ulimit -f`), not lose its daemon.
  ::signal(SIGXFSZ, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// virtiofsd keeps a descriptor for each file that the guest knows; the usual limit is for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// In the program's process: executes it.
[[noreturn]] void become_program(const Plan& plan, pid_t supervisor) {
  const auto fail = [&plan](Report::Step step) {
    tell(plan.report, {.step = step, .why = errno, .process = 0});
    ::_exit(EXIT_FAILURE);
  };
  if (const auto failed = set_apart(plan)) fail(*failed);
  // After set_apart(), as a change of credentials clears the death signal. The supervisor may have died before.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (plan.refuses_setuid_bits && !refuse_setuid_bits()) fail(Report::Step::filter);
  if (::getppid() != supervisor) ::_exit(EXIT_FAILURE);
  forget_signals();
  raise_descriptor_limit();
  // Moved out of the way; execve() closes it, which reports success.
  const int report = ::fcntl(plan.report, F_DUPFD_CLOEXEC, Daemon::kept_descriptor + 1);
  if (plan.keeps >= 0) {
    ::dup2(plan.keeps, Daemon::kept_descriptor);
    ::fcntl(Daemon::kept_descriptor, F_SETFD, 0);  // dup2() does not clear it if the descriptor already has that number
  }
  const unsigned first_other = Daemon::kept_descriptor + (plan.keeps >= 0 ? 1 : 0);
  ::close_range(first_other, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execv(plan.arguments.front(), plan.arguments.data());
  tell(report, {.step = Report::Step::execute, .why = errno, .process = 0});
  ::_exit(EXIT_FAILURE);
}

/// Waits for `milliseconds` at most (-1: for ever) until the process ends or the lifeline, if any, closes. True if the
/// process has ended.
bool has_ended(int process, int lifeline, int milliseconds) {
  std::array<pollfd, 2> waiting{pollfd{.fd = process, .events = POLLIN, .revents = 0},
                                pollfd{.fd = lifeline, .events = POLLIN, .revents = 0}};
  while (::poll(waiting.data(), waiting.size(), milliseconds) < 0 && errno == EINTR) continue;
  return waiting[0].revents != 0;
}

/// The supervisor's process, which looks after the program.
[[noreturn]] void keep(const Plan& plan) {
  ::prctl(PR_SET_NAME, "vpmu-supervisor");
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) ::_exit(EXIT_FAILURE);
  ::dup2(null, STDIN_FILENO);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(plan.messages, output);
  const pid_t self = ::getpid(), program = ::fork();
  if (program == 0) become_program(plan, self);
  const int process = program < 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, program, 0));
  if (process < 0) {
    tell(plan.report, {.step = Report::Step::fork, .why = errno, .process = 0});
    if (program > 0) ::kill(program, SIGKILL);
    ::_exit(EXIT_FAILURE);
  }
  tell(plan.report, {.step = Report::Step::started, .why = 0, .process = program});
  // Closes all descriptors of the parent: its other daemons could not see its end while they are open here.
  ::dup2(process, STDIN_FILENO);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, output);
  ::dup2(plan.lifeline, lifeline_descriptor);
  ::close_range(lifeline_descriptor + 1, ~0U, 0);
  if (!has_ended(STDIN_FILENO, lifeline_descriptor, -1) && !has_ended(STDIN_FILENO, -1, by_itself_ms)) {
    ::kill(program, SIGTERM);
    if (!has_ended(STDIN_FILENO, -1, asked_ms)) ::kill(program, SIGKILL);
  }
  ::waitpid(program, nullptr, 0);
  ::_exit(EXIT_SUCCESS);
}

Error explain(const std::string& name, const std::string& program, const Report& report) {
  const auto with = [&](std::string what, std::string advice) {
    return Error{
        .kind = ErrorKind::host, .what = std::move(what), .advice = std::move(advice), .system_errno = report.why};
  };
  switch (report.step) {
    case Report::Step::namespaces:
    case Report::Step::user_map:
      return with(fmt::format("{}: cannot make namespaces for {}", name, program),
                  "run as root, or let users make user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
                  "kernel.apparmor_restrict_unprivileged_userns=0)");
    case Report::Step::read_only:
      return with(fmt::format("{}: cannot make the mounts of {} read-only", name, program),
                  "Linux 5.12 or later can, outside of a chroot");
    case Report::Step::filter:
      return with(fmt::format("{}: cannot filter the system calls of {}", name, program),
                  "use a kernel with seccomp filters, or allow special files");
    case Report::Step::execute: return with(fmt::format("{}: cannot execute {}", name, program), {});
    case Report::Step::started:
    case Report::Step::fork: break;
  }
  return with(fmt::format("{}: cannot start a process", name), {});
}

/// Collects what the children report, until the program runs or has failed to start.
Report hear(int from) {
  Report all{.step = Report::Step::fork, .why = ECHILD, .process = 0};
  Report next{};
  for (ssize_t got = 0; (got = ::read(from, &next, sizeof next)) == sizeof next || (got < 0 && errno == EINTR);) {
    if (got < 0) continue;
    // The reports of supervisor and program come in any order; a failure is what counts.
    if (next.step == Report::Step::started) all.process = next.process;
    if (next.step != Report::Step::started || all.step == Report::Step::fork) {
      all.step = next.step;
      all.why = next.why;
    }
  }
  return all;
}

Result<std::array<Fd, 2>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return host_error("pipe", errno);
  return std::array{Fd{ends[0]}, Fd{ends[1]}};
}

/// Runs keep() in a process that nobody has to wait for.
Result<void> start_supervisor(const Plan& plan) {
  const pid_t child = ::fork();
  if (child < 0) return host_error("cannot start a process: fork", errno);
  if (child == 0) {
    if (const pid_t supervisor = ::fork(); supervisor == 0) keep(plan);
    ::_exit(EXIT_SUCCESS);
  }
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  return {};
}

}  // namespace

Result<Daemon> Daemon::start(DaemonLaunch launch) {
  Plan plan{};
  for (std::string& argument : launch.arguments) plan.arguments.push_back(argument.data());
  plan.arguments.push_back(nullptr);
  plan.is_root = ::geteuid() == 0;
  // Root in the namespace, and so the guest's, is the user who started the machine.
  plan.user_map = fmt::format("0 {} 1", ::geteuid());
  plan.group_map = fmt::format("0 {} 1", ::getegid());
  plan.surroundings = launch.surroundings;
  plan.refuses_setuid_bits = launch.refuses_setuid_bits;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return host_error("socketpair", errno);
  Fd lifeline{ends[0]}, supervisors_end{ends[1]};
  VMM_ASSIGN(auto messages, make_pipe());
  VMM_ASSIGN(auto report, make_pipe());
  plan.keeps = launch.keeps.get();
  plan.messages = messages[1].get();
  plan.lifeline = supervisors_end.get();
  plan.report = report[1].get();
  VMM_TRY(start_supervisor(plan));
  messages[1].reset();
  report[1].reset();
  supervisors_end.reset();
  const Report heard = hear(report[0].get());
  if (heard.step != Report::Step::started) return Failure{explain(launch.name, launch.arguments.front(), heard)};
  return Daemon{std::move(launch.name), std::move(lifeline), heard.process,
                std::make_shared<LastLines>(std::move(messages[0]))};
}

void Daemon::end() {
  if (!lifeline_.valid()) return;
  ::shutdown(lifeline_.get(), SHUT_WR);
  // The supervisor closes its end when the program is gone. A program that the kernel cannot end is left to the
  // supervisor.
  pollfd over{.fd = lifeline_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&over, 1, by_itself_ms + asked_ms + 1'000) < 0 && errno == EINTR) continue;
  lifeline_.reset();
}

Result<std::string> said_by(const std::vector<std::string>& arguments, std::chrono::milliseconds patience) {
  VMM_ASSIGN(auto program, Daemon::start({.name = arguments.front(), .arguments = arguments}));
  if (!program.messages()->read_to_end(patience))
    return host_error(fmt::format("{} has not ended within {} ms", arguments.front(), patience.count()), 0,
                      "name another program");
  return program.messages()->text();
}

}  // namespace vmm::virtio
