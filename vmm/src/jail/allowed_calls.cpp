#include "jail/allowed_calls.hpp"

#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>

namespace vmm {
namespace {

using Calls = std::vector<AllowedCall>;

void add(Calls& calls, std::initializer_list<int> numbers) {
  for (const int number : numbers) calls.push_back({.number = number});
}

/// Allows the call if the argument has one of these values.
void add_with(Calls& calls, int number, unsigned argument, std::initializer_list<std::uint64_t> values) {
  for (const std::uint64_t value : values)
    calls.push_back({.number = number, .arguments = {scmp_arg_cmp{argument, SCMP_CMP_EQ, value, 0}}});
}

/// Allows the call if the argument's bits under `mask` are `bits`.
void add_masked(Calls& calls, int number, unsigned argument, std::uint64_t mask, std::uint64_t bits) {
  calls.push_back({.number = number, .arguments = {scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, mask, bits}}});
}

/// What every thread does: memory, locks, time, its own signals, and descriptors that are open.
void add_everyday(Calls& calls) {
  add(calls, {SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(futex),
              SCMP_SYS(sched_yield), SCMP_SYS(getrandom)});
  add(calls, {SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep),
              SCMP_SYS(gettimeofday)});
  add(calls, {SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigaction), SCMP_SYS(sigaltstack),
              SCMP_SYS(restart_syscall)});
  add(calls, {SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(exit), SCMP_SYS(exit_group),
              SCMP_SYS(timer_delete)});
  add(calls, {SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(pread64), SCMP_SYS(readv), SCMP_SYS(writev), SCMP_SYS(close),
              SCMP_SYS(lseek), SCMP_SYS(fstat)});
  add(calls, {SCMP_SYS(poll), SCMP_SYS(ppoll)});
  // How the C library asks for a descriptor's status.
  add_masked(calls, SCMP_SYS(newfstatat), 3, AT_EMPTY_PATH, AT_EMPTY_PATH);
  for (const int number : {SCMP_SYS(tgkill), SCMP_SYS(rt_tgsigqueueinfo)})
    add_with(calls, number, 0, {static_cast<std::uint64_t>(::getpid())});
  add_with(calls, SCMP_SYS(prctl), 0, {PR_GET_NAME});
  // The terminal's settings; not TIOCSTI, which types in the user's place.
  add_with(calls, SCMP_SYS(ioctl), 1, {TCGETS, TCSETS, TCSETSW, TCSETSF, TIOCGWINSZ});
  add_masked(calls, SCMP_SYS(ioctl), 1, 0xFF00, KVMIO << 8U);
}

/// Memory that is not at the same time writable and executable.
void add_mapping(Calls& calls) {
  for (const int number : {SCMP_SYS(mmap), SCMP_SYS(mprotect), SCMP_SYS(pkey_mprotect)}) {
    add_masked(calls, number, 2, PROT_WRITE, 0);
    add_masked(calls, number, 2, PROT_EXEC, 0);
  }
}

/// The session's event loop: terminal, control socket, timers.
void add_event_loop(Calls& calls) {
  add(calls, {SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_ctl), SCMP_SYS(timerfd_settime)});
  add(calls, {SCMP_SYS(accept), SCMP_SYS(accept4), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(recvfrom),
              SCMP_SYS(sendto)});
  add(calls, {SCMP_SYS(shutdown), SCMP_SYS(getsockopt), SCMP_SYS(setsockopt), SCMP_SYS(fsync), SCMP_SYS(fdatasync)});
  add_with(calls, SCMP_SYS(ioctl), 1, {FIONBIO, FIONREAD});
  add_with(calls, SCMP_SYS(fcntl), 1, {F_GETFL, F_SETFL, F_GETFD, F_SETFD, F_DUPFD_CLOEXEC});
}

/// Timers that kick a vCPU, and the compiler's code.
void add_vcpu_work(Calls& calls) {
  add(calls, {SCMP_SYS(timer_settime), SCMP_SYS(timer_gettime), SCMP_SYS(timer_getoverrun)});
  add(calls, {SCMP_SYS(epoll_ctl)});  // wakes the session's thread
  add(calls,
      {SCMP_SYS(pwrite64), SCMP_SYS(memfd_create), SCMP_SYS(ftruncate), SCMP_SYS(pkey_alloc), SCMP_SYS(pkey_free)});
  add_masked(calls, SCMP_SYS(ioctl), 1, 0xFF00, static_cast<std::uint64_t>('$') << 8U);  // of performance events
  add_with(calls, SCMP_SYS(fcntl), 1, {F_ADD_SEALS, F_GET_SEALS});
}

/// The broker opens the events, and sends them over its socket.
void add_receiving_of_events(Calls& calls) {
  add(calls, {SCMP_SYS(sendto), SCMP_SYS(recvfrom), SCMP_SYS(recvmsg)});
  add_with(calls, SCMP_SYS(fcntl), 1, {F_SETFL, F_SETOWN_EX, F_SETSIG});
}

/// Threads and what they need until they are confined themselves: the clock that ends time slices is an event.
void add_starting_of_threads(Calls& calls) {
  add(calls, {SCMP_SYS(perf_event_open)});
  add_masked(calls, SCMP_SYS(clone), 0, CLONE_THREAD, CLONE_THREAD);
  add(calls, {SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(sched_getaffinity), SCMP_SYS(timer_create),
              SCMP_SYS(capset)});
  add(calls, {SCMP_SYS(eventfd2), SCMP_SYS(epoll_create1), SCMP_SYS(timerfd_create)});
  add_with(calls, SCMP_SYS(prctl), 0, {PR_SET_NAME, PR_SET_NO_NEW_PRIVS});
  add_with(calls, SCMP_SYS(seccomp), 0, {SECCOMP_SET_MODE_FILTER});
  add_with(calls, SCMP_SYS(prlimit64), 2, {0});  // asks, and sets nothing
}

}  // namespace

std::vector<AllowedCall> allowed_calls(Confined whom, VcpuNeeds needs) {
  Calls calls;
  add_everyday(calls);
  if (whom == Confined::main) {
    // Nothing that it maps is executable.
    for (const int number : {SCMP_SYS(mmap), SCMP_SYS(mprotect)}) add_masked(calls, number, 2, PROT_EXEC, 0);
  } else {
    add_mapping(calls);
    add_vcpu_work(calls);
  }
  if (whom != Confined::vcpu) add_event_loop(calls);
  if (whom == Confined::process) add_starting_of_threads(calls);
  if (whom == Confined::process || (whom == Confined::vcpu && needs.counts_by_perf)) add_receiving_of_events(calls);
  // A guest's driver starts and stops a device on its vCPU's thread; the socket's other end is always the daemon.
  if (whom == Confined::vcpu && needs.outside_devices) add(calls, {SCMP_SYS(sendmsg)});
  return calls;
}

}  // namespace vmm
