#include "kvm/kick.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace vmm {

namespace kicked_thread {
constinit thread_local volatile std::uint8_t* flag = nullptr;
constinit thread_local volatile std::sig_atomic_t missed = 0;
constinit thread_local pid_t number = 0;
}  // namespace kicked_thread

namespace {

void on_kick(int /*signal*/) {
  auto* const flag = kicked_thread::flag;
  if (flag == nullptr) {
    kicked_thread::missed = 1;
    return;
  }
  // One of somebody else's stays: it ends the run as well, and he must see it.
  std::uint8_t now = 0;
  while (!__atomic_compare_exchange_n(flag, &now, kick_mark, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
         now == completing_mark) {
  }
}

}  // namespace

int kick_signal() { return SIGRTMIN; }

Result<void> install_kick_handler() {
  struct sigaction action{};
  action.sa_handler = on_kick;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(kick_signal(), &action, nullptr) != 0) {
    return host_error("sigaction of the kick signal", errno);
  }
  return {};
}

void KickTarget::take_missed() const {
  kicked_thread::missed = 0;
  if (*flag_ == 0) *flag_ = kick_mark;
}

// A child's only thread has the variables of the one that forked, and another number.
pid_t ask_for_this_thread() {
  static const int told = ::pthread_atfork(nullptr, nullptr, [] { kicked_thread::number = 0; });
  (void)told;
  return ::gettid();
}

void kick_thread(pid_t thread) { (void)::tgkill(::getpid(), thread, kick_signal()); }

void kick(pthread_t thread) { ::pthread_kill(thread, kick_signal()); }

}  // namespace vmm
