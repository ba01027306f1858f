#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "kvm/kick.hpp"

namespace vmm::test {
namespace {

constexpr int good = 7;

/// Runs `what` in a process of its own; returns its exit code, or minus the number of the signal that ended it.
int in_a_process(const std::function<int()>& what) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(what());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

volatile std::sig_atomic_t theirs = 0, with_value = 0;
void handler(int) { theirs = theirs + 1; }
void full_handler(int, siginfo_t* info, void*) {
  theirs = theirs + 1;
  with_value = info->si_value.sival_int;
}

void handle(int signal, bool full = false) {
  struct sigaction action{};
  if (full) {
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = full_handler;
  } else {
    action.sa_handler = handler;
  }
  ::sigaction(signal, &action, nullptr);
}

void handle_all() {
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) handle(signal, true);
}

bool is_kicked_by(const std::function<void()>& act) {
  volatile std::uint8_t flag = 0;
  const KickTarget target{&flag};
  act();
  return flag != 0;
}

// kick_signal() chooses once per process. The parent never calls it, so that each child chooses anew.
TEST(KickSignal, IsOneThatNobodyHandles) {
  EXPECT_EQ(in_a_process([] {
              handle(SIGRTMAX);
              handle(SIGRTMIN);
              const int chosen = choose_kick_signal();
              return chosen == SIGRTMAX - 1 ? good : 1;
            }),
            good);
}

TEST(KickSignal, IsSharedWhereAllAreHandled) {
  EXPECT_EQ(in_a_process([] {
              handle_all();
              return choose_kick_signal() == SIGRTMAX ? good : 1;
            }),
            good);
}

/// From now on the user's queue of pending signals has no room.
void fill_queue() {
  constexpr rlimit none{};
  if (::setrlimit(RLIMIT_SIGPENDING, &none) != 0) ::_exit(good + 1);
}

TEST(KickSignal, ComesThroughAFullQueueOfSignals) {
  EXPECT_EQ(in_a_process([] {
              if (!install_kick_handler()) return 1;
              fill_queue();
              if (::sigqueue(::getpid(), kick_signal(), kick_value()) == 0) return 2;
              if (!is_kicked_by([] { kick_thread(this_thread()); })) return 3;
              if (!is_kicked_by([] { kick(::pthread_self()); })) return 4;
              return good;
            }),
            good);
}

// If a pipe's signal cannot be queued, the kernel sends SIGIO, which ends a process that has no handler for it.
TEST(KickSignal, OfAFileComesThroughAFullQueueOfSignals) {
  EXPECT_EQ(in_a_process([] {
              if (!install_kick_handler()) return 1;
              int ends[2];
              const f_owner_ex owner{.type = F_OWNER_TID, .pid = this_thread()};
              if (::pipe(ends) != 0 || ::fcntl(ends[0], F_SETOWN_EX, &owner) != 0 ||
                  ::fcntl(ends[0], F_SETSIG, kick_signal()) != 0 || ::fcntl(ends[0], F_SETFL, O_ASYNC) != 0)
                return 2;
              fill_queue();
              return is_kicked_by([&] { (void)!::write(ends[1], "x", 1); }) ? good : 3;
            }),
            good);
}

TEST(KickSignal, SigioOfOthersIsTheirs) {
  EXPECT_EQ(in_a_process([] {
              if (!install_kick_handler()) return 1;
              return ::raise(SIGIO) == 0 ? 2 : 3;
            }),
            -SIGIO);
  EXPECT_EQ(in_a_process([] {
              handle(SIGIO);
              if (!install_kick_handler()) return 1;
              ::raise(SIGIO);
              return theirs == 1 ? good : 2;
            }),
            good);
}

TEST(KickSignal, KicksOfOursAreNobodyElses) {
  EXPECT_EQ(in_a_process([] {
              handle(kick_signal(), true);
              if (!install_kick_handler()) return 1;
              if (!is_kicked_by([] { kick_thread(this_thread()); })) return 2;
              if (!is_kicked_by([] { kick(::pthread_self()); })) return 3;
              return theirs == 0 ? good : 4;
            }),
            good);
}

TEST(KickSignal, SignalOfOthersGoesOnToTheirHandlerWithAllThatItCarries) {
  EXPECT_EQ(in_a_process([] {
              handle(kick_signal(), true);
              if (!install_kick_handler()) return 1;
              if (is_kicked_by([] { ::pthread_sigqueue(::pthread_self(), kick_signal(), {.sival_int = 42}); }))
                return 2;
              if (theirs != 1 || with_value != 42) return 3;
              if (is_kicked_by([] { ::raise(kick_signal()); })) return 4;
              return theirs == 2 ? good : 5;
            }),
            good);
}

TEST(KickSignal, SignalOfOthersGoesOnToAHandlerThatTakesOnlyTheNumber) {
  EXPECT_EQ(in_a_process([] {
              handle(kick_signal());
              if (!install_kick_handler()) return 1;
              if (is_kicked_by([] { ::raise(kick_signal()); })) return 2;
              return theirs == 1 ? good : 3;
            }),
            good);
}

TEST(KickSignal, SignalOfOthersThatNobodyHandlesEndsTheProcessAsItWouldWithoutUs) {
  const int ended = in_a_process([] {
    if (!install_kick_handler()) return 1;
    ::raise(kick_signal());
    return 2;
  });
  EXPECT_LE(ended, -SIGRTMIN) << "by the signal";
}

TEST(KickSignal, SignalThatIsIgnoredStaysIgnored) {
  EXPECT_EQ(in_a_process([] {
              ::signal(kick_signal(), SIG_IGN);
              if (!install_kick_handler()) return 1;
              ::raise(kick_signal());
              return is_kicked_by([] { kick_thread(this_thread()); }) ? good : 2;
            }),
            good);
}

// Another handler may be installed after ours. The next vCPU then installs ours again, in front of the other.
TEST(KickSignal, HandlerThatWasReplacedComesBackInFront) {
  EXPECT_EQ(in_a_process([] {
              if (!install_kick_handler()) return 1;
              handle(kick_signal(), true);
              if (is_kicked_by([] { kick_thread(this_thread()); })) return 2;
              theirs = 0;
              if (!install_kick_handler()) return 3;
              if (!is_kicked_by([] { kick_thread(this_thread()); }) || theirs != 0) return 4;
              ::raise(kick_signal());
              return theirs == 1 ? good : 5;
            }),
            good);
}

}  // namespace
}  // namespace vmm::test
