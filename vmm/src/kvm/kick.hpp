#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>

#include "support/assert.hpp"
#include "support/result.hpp"

namespace vmm {

/// The value that a kick writes to a vCPU's flag. Others that share the flag, such as an attached VMM, write 1.
constexpr std::uint8_t kick_mark = 2;
/// The flag's value while an exit is completed without running the guest.
constexpr std::uint8_t completing_mark = 4;
/// Read and write a vCPU's flag, which signal handlers and other threads access, too.
inline std::uint8_t mark_of(const volatile std::uint8_t& flag) { return __atomic_load_n(&flag, __ATOMIC_RELAXED); }
inline void set_mark(volatile std::uint8_t& flag, std::uint8_t mark) {
  __atomic_store_n(&flag, mark, __ATOMIC_RELAXED);
}

/// The real-time signal that brings a vCPU thread out of the guest. Timers, with kick_value(), and perf events may use
/// it as well: the handler makes the receiving thread's vCPU leave the guest even when the signal comes just before
/// entry. Chosen once for the process, by choose_kick_signal().
int kick_signal();
/// The highest real-time signal without a handler, because VMMs and libraries count up from SIGRTMIN. SIGRTMAX if all
/// have one.
[[nodiscard]] int choose_kick_signal();
/// The value that our own signals carry, which distinguishes them from those of others.
sigval kick_value();

/// Installs the process's handler of kick_signal(), in front of an existing one. A signal that is not our kick goes on
/// to that handler, or has its default effect. A later call goes in front of a handler that has replaced ours. SIGIO
/// gets a handler if it has none: it replaces kicks while the user's signal queue is full.
Result<void> install_kick_handler();

/// Variables of each thread. The signal handler, which may run at any time, uses the first two.
namespace kicked_thread {
extern constinit thread_local volatile std::uint8_t* flag;
extern constinit thread_local volatile std::sig_atomic_t missed;  ///< A kick came while there was no flag.
extern constinit thread_local pid_t number;  ///< The result of this_thread(); 0 = not yet asked for.
}  // namespace kicked_thread

/// Tells the signal handler the flag of the vCPU that the calling thread runs: Vcpu::immediate_exit_flag(), or the one
/// that a processor in software checks. Valid in its scope. A nested one replaces the outer one until it ends, and then
/// passes a kick on to it.
class KickTarget {
 public:
  /// Whether a kick that came while the thread had no flag is lost, or sets this one.
  enum class Missed : bool { lost, taken };
  explicit KickTarget(volatile std::uint8_t* flag, Missed kicks = Missed::lost)
      : flag_{flag}, outer_{kicked_thread::flag} {
    VMM_ASSERT(flag != outer_);
    kicked_thread::flag = flag;
    if (kicks == Missed::taken && kicked_thread::missed != 0) take_missed();
  }
  ~KickTarget() {
    kicked_thread::flag = outer_;
    if (outer_ != nullptr && mark_of(*flag_) != 0 && mark_of(*outer_) == 0) set_mark(*outer_, kick_mark);
  }
  KickTarget(const KickTarget&) = delete;
  KickTarget& operator=(const KickTarget&) = delete;
  KickTarget(KickTarget&&) = delete;
  KickTarget& operator=(KickTarget&&) = delete;

 private:
  void take_missed() const;

  volatile std::uint8_t* flag_;
  volatile std::uint8_t* outer_;
};

pid_t ask_for_this_thread();
/// The calling thread's id. Cost: a system call the first time, also after a fork().
inline pid_t this_thread() {
  if (kicked_thread::number == 0) kicked_thread::number = ask_for_this_thread();
  return kicked_thread::number;
}

/// Like kick(), but takes the id of a thread of this process. That thread may have ended: then nothing happens, or
/// another thread that now has the id gets a needless kick.
void kick_thread(pid_t thread);

/// Makes the vCPU that `thread` runs return Interrupted. A kick is lost only if the user's signal queue is full
/// (RLIMIT_SIGPENDING) and somebody else handles SIGIO. May cause one Interrupted too many. `thread` must not have been
/// joined. Cost: one system call.
void kick(pthread_t thread);

}  // namespace vmm
