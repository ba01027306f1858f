#include "kvm/kick.hpp"

#include <cerrno>
#include <csignal>
#include <utility>

#include "support/assert.hpp"

namespace vmm {
namespace {

/// What the handler may touch: async-signal-safe because it is one flag of the thread's own.
thread_local volatile std::uint8_t* flag_of_this_thread = nullptr;

void on_kick(int /*signal*/) {
  if (auto* const flag = flag_of_this_thread; flag != nullptr) {
    *flag = kick_mark;
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

KickTarget::~KickTarget() {
  flag_of_this_thread = outer_;
  if (outer_ != nullptr && *flag_ != 0) *outer_ = 1;
}

void kick(pthread_t thread) { ::pthread_kill(thread, kick_signal()); }

}  // namespace vmm
