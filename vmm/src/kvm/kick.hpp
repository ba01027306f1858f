#pragma once
#include <pthread.h>

#include <cstdint>

#include "support/result.hpp"

namespace vmm {

/// What a kick leaves in a vCPU's flag. Others that share the flag, such as a VMM around us, leave 1.
constexpr std::uint8_t kick_mark = 2;
/// What the flag has while an exit is completed and the guest is not to run.
constexpr std::uint8_t completing_mark = 4;

/// The real-time signal that brings a vCPU thread out of the guest. Timers and perf events may use it as well: the handler
/// makes the receiving thread's vCPU leave the guest even when the signal comes just before entry.
int kick_signal();

/// Installs the handler of kick_signal() for the process. Idempotent.
Result<void> install_kick_handler();

/// Names the flag of the vCPU that the calling thread runs, for the signal handler: Vcpu::immediate_exit_flag(), or what a processor in
/// software looks at. Ends with its scope; one inside another takes its place until then, and hands on that there was a kick.
class KickTarget {
 public:
  explicit KickTarget(volatile std::uint8_t* flag);
  ~KickTarget();
  /// A kick that came while the thread had none is for this one.
  void take_missed();
  KickTarget(const KickTarget&) = delete;
  KickTarget& operator=(const KickTarget&) = delete;
  KickTarget(KickTarget&&) = delete;
  KickTarget& operator=(KickTarget&&) = delete;

 private:
  volatile std::uint8_t* flag_;
  volatile std::uint8_t* outer_;
};

/// Makes the vCPU that `thread` runs return Interrupted. Never loses a kick; may cause one Interrupted too many.
/// `thread` must not have been joined. Cost: one system call.
void kick(pthread_t thread);

}  // namespace vmm
