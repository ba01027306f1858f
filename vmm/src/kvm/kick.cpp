#include "kvm/kick.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

namespace vmm {

namespace kicked_thread {
constinit thread_local volatile std::uint8_t* flag = nullptr;
constinit thread_local volatile std::sig_atomic_t missed = 0;
constinit thread_local pid_t number = 0;
}  // namespace kicked_thread

namespace {

/// A signal that carries its address is ours.
constinit char ours{};
/// The action that ours replaced; only our handler reads it.
constinit struct sigaction previous{};
/// Whether our handler handles SIGIO, too.
constinit std::atomic<bool> has_io{};

void kick_this_thread() {
  auto* const flag = kicked_thread::flag;
  if (flag == nullptr) {
    kicked_thread::missed = 1;
    return;
  }
  // A mark that somebody else has set stays: it ends the run as well, and its owner must see it.
  std::uint8_t now = 0;
  while (!__atomic_compare_exchange_n(flag, &now, kick_mark, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
         now == completing_mark) {
  }
}

bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

/// Does with the signal what the kernel would have done without our handler.
void pass_on(int signal, siginfo_t* info, void* context) {
  if (has_handler(previous)) {
    sigset_t before;
    ::pthread_sigmask(SIG_BLOCK, &previous.sa_mask, &before);
    if ((previous.sa_flags & SA_SIGINFO) != 0)
      previous.sa_sigaction(signal, info, context);
    else
      previous.sa_handler(signal);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } else if (previous.sa_handler == SIG_DFL) {
    // The signal ends the process when this handler returns and unblocks it.
    ::sigaction(signal, &previous, nullptr);
    (void)::tgkill(::getpid(), ::gettid(), signal);
  }
}

// A signal that a file sends (F_SETSIG) carries no kick_value(), so nobody knows whose it is: it counts as a kick and
// also goes on to the other handler. A needless kick costs one check.
void on_kick(int signal, siginfo_t* info, void* context) {
  const int code = info->si_code;
  const bool is_files = code >= POLL_IN && code <= POLL_HUP;
  const bool is_ours = (code == SI_QUEUE || code == SI_TIMER) && info->si_value.sival_ptr == &ours;
  const int error = errno;
  if (is_ours || is_files) kick_this_thread();
  if (!is_ours && (!is_files || has_handler(previous))) pass_on(signal, info, context);
  errno = error;
}

// If the user's signal queue is full (RLIMIT_SIGPENDING), a file sends SIGIO instead, and so do we; such a SIGIO
// carries no information, and seems to come from process 0. Any other SIGIO has its default effect.
void on_io(int signal, siginfo_t* info, void*) {
  const int error = errno;
  if (info->si_code == SI_KERNEL || (info->si_code == SI_USER && info->si_pid == 0)) {
    kick_this_thread();
  } else {
    ::signal(signal, SIG_DFL);
    (void)::tgkill(::getpid(), ::gettid(), signal);
  }
  errno = error;
}

// If somebody handles or ignores SIGIO, that stays.
Result<void> handle_io() {
  struct sigaction now{};
  if (::sigaction(SIGIO, nullptr, &now) != 0) return host_error("sigaction of SIGIO", errno);
  if (has_handler(now) || now.sa_handler != SIG_DFL) return {};
  struct sigaction action{};
  action.sa_sigaction = on_io;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(SIGIO, &action, nullptr) != 0) return host_error("sigaction of SIGIO", errno);
  has_io = true;
  return {};
}

}  // namespace

int choose_kick_signal() {
  for (int signal = SIGRTMAX; signal >= SIGRTMIN; --signal) {
    struct sigaction now{};
    if (::sigaction(signal, nullptr, &now) == 0 && !has_handler(now) && now.sa_handler == SIG_DFL) return signal;
  }
  return SIGRTMAX;
}

int kick_signal() {
  static const int chosen = choose_kick_signal();
  return chosen;
}

sigval kick_value() { return {.sival_ptr = &ours}; }

Result<void> install_kick_handler() {
  static std::mutex installing;
  const std::scoped_lock lock{installing};
  struct sigaction now{};
  if (::sigaction(kick_signal(), nullptr, &now) != 0) return host_error("sigaction of the kick signal", errno);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_kick) return {};
  previous = now;
  struct sigaction action{};
  action.sa_sigaction = on_kick;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(kick_signal(), &action, nullptr) != 0) return host_error("sigaction of the kick signal", errno);
  return handle_io();
}

void KickTarget::take_missed() const {
  kicked_thread::missed = 0;
  if (mark_of(*flag_) == 0) set_mark(*flag_, kick_mark);
}

// After fork() the child's only thread has copies of its parent thread's variables, but another id.
pid_t ask_for_this_thread() {
  static const int told = ::pthread_atfork(nullptr, nullptr, [] { kicked_thread::number = 0; });
  (void)told;
  return ::gettid();
}

void kick_thread(pid_t thread) {
  siginfo_t info{};
  info.si_signo = kick_signal();
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_value = kick_value();
  if (::syscall(SYS_rt_tgsigqueueinfo, info.si_pid, thread, info.si_signo, &info) != 0 && errno == EAGAIN && has_io)
    (void)::tgkill(info.si_pid, thread, SIGIO);
}

void kick(pthread_t thread) {
  if (::pthread_sigqueue(thread, kick_signal(), kick_value()) == EAGAIN && has_io) ::pthread_kill(thread, SIGIO);
}

}  // namespace vmm
