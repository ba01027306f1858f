#include "kvm/kick.hpp"

#include <cerrno>
#include <csignal>
#include <utility>

#include "support/assert.hpp"

namespace vmm {
namespace {

/// What the handler may touch: async-signal-safe because it is one flag of the thread's own.
thread_local volatile std::uint8_t* flag_of_this_thread = nullptr;
/// A kick came while the thread had no flag.
thread_local volatile std::sig_atomic_t missed = 0;

void on_kick(int /*signal*/) {
  auto* const flag = flag_of_this_thread;
  if (flag == nullptr) {
    missed = 1;
    return;
  }
  // One of somebody else's stays: it ends the run as well, and he must see it.
  std::uint8_t now = 0;
  while (!__atomic_compare_exchange_n(flag, &now, kick_mark, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) && now == completing_mark) {
  }
}

}  // namespace

int kick_signal() { return SIGRTMIN; }

Result<void> install_kick_handler() {
  struct sigaction action {};
  action.sa_handler = on_kick;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(kick_signal(), &action, nullptr) != 0) {
    return host_error("sigaction of the kick signal", errno);
  }
  return {};
}

KickTarget::KickTarget(volatile std::uint8_t* flag) : flag_{flag}, outer_{std::exchange(flag_of_this_thread, flag)} {
  VMM_ASSERT(flag != outer_);
}

void KickTarget::take_missed() {
  if (missed == 0) return;
  missed = 0;
  if (*flag_ == 0) *flag_ = kick_mark;
}

KickTarget::~KickTarget() {
  flag_of_this_thread = outer_;
  if (outer_ != nullptr && *flag_ != 0 && *outer_ == 0) *outer_ = kick_mark;
}

void kick(pthread_t thread) { ::pthread_kill(thread, kick_signal()); }

}  // namespace vmm
