#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>

#include "support/assert.hpp"
#include "support/result.hpp"

namespace vmm {

/// What a kick leaves in a vCPU's flag. Others that share the flag, such as a VMM around us, leave 1.
constexpr std::uint8_t kick_mark = 2;
/// What the flag has while an exit is completed and the guest is not to run.
constexpr std::uint8_t completing_mark = 4;
/// What a vCPU's flag has now; and gives it a mark. Signals and other threads do so too.
inline std::uint8_t mark_of(const volatile std::uint8_t& flag) { return __atomic_load_n(&flag, __ATOMIC_RELAXED); }
inline void set_mark(volatile std::uint8_t& flag, std::uint8_t mark) {
  __atomic_store_n(&flag, mark, __ATOMIC_RELAXED);
}

/// The real-time signal that brings a vCPU thread out of the guest. Timers, with kick_value(), and perf events may use
/// it as well: the handler makes the receiving thread's vCPU leave the guest even when the signal comes just before
/// entry. Chosen once for the process, by choose_kick_signal().
int kick_signal();
/// The highest real-time signal that nobody handles: VMMs and libraries count up from SIGRTMIN. SIGRTMAX where all are
/// handled.
[[nodiscard]] int choose_kick_signal();
/// What comes with our own signals, and tells them from those of others.
sigval kick_value();

/// Installs the handler of kick_signal() for the process, in front of the one that is there. What is not a kick of ours
/// goes on to that one, or does what the signal does without any. Again: in front of whoever has taken its place. SIGIO
/// gets a handler where it has none: it stands for kicks while the user's queue of signals is full.
Result<void> install_kick_handler();

/// What is the thread's own; the signal's handler touches the first two while its signals come in.
namespace kicked_thread {
extern constinit thread_local volatile std::uint8_t* flag;
extern constinit thread_local volatile std::sig_atomic_t missed;  ///< A kick came while there was no flag.
extern constinit thread_local pid_t number;                       ///< As this_thread() tells; 0 = not asked for yet.
}  // namespace kicked_thread

/// Names the flag of the vCPU that the calling thread runs, for the signal handler: Vcpu::immediate_exit_flag(), or
/// what a processor in software looks at. Ends with its scope; one inside another takes its place until then, and hands
/// on that there was a kick.
class KickTarget {
 public:
  /// A kick that came while the thread had no flag is lost, or for this one.
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
/// The calling thread's number. Cost: a system call the first time, also after a fork().
inline pid_t this_thread() {
  if (kicked_thread::number == 0) kicked_thread::number = ask_for_this_thread();
  return kicked_thread::number;
}

/// As below, but of a thread of this process by its number, which may have ended: then nothing happens, or another
/// thread that has the number now looks once in vain.
void kick_thread(pid_t thread);

/// Makes the vCPU that `thread` runs return Interrupted. Never loses a kick, but where the user's queue of signals is
/// full (RLIMIT_SIGPENDING) and somebody else handles SIGIO; may cause one Interrupted too many.
/// `thread` must not have been joined. Cost: one system call.
void kick(pthread_t thread);

}  // namespace vmm
