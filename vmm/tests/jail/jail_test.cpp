#include "jail/jail.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "jail/identity.hpp"
#include "jail/landlock.hpp"
#include "kvm/fd.hpp"
#include "kvm/kick.hpp"
#include "memory/guest_memory.hpp"
#include "memory/host_code.hpp"
#include "perf/cpu_timer.hpp"

// Attacks the jail: runs code in a thread confined like a vCPU's, which tries to get out.

namespace vmm::test {
namespace {

struct Ended {
  int exit_code;  ///< -1: ended by a signal.
  std::string errors;
};

/// Runs `what` in a process of its own.
Ended in_a_process(const std::function<int()>& what) {
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::_exit(what());
  }
  ::close(pipe[1]);
  std::string errors;
  std::array<char, 512> part{};
  for (ssize_t got = 0; (got = ::read(pipe[0], part.data(), part.size())) > 0;)
    errors.append(part.data(), static_cast<std::size_t>(got));
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, errors};
}

constexpr int cannot_begin = 99;
constexpr int survived = 42;

int fail(const Error& error) {
  const std::string text = describe(error);
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  return cannot_begin;
}

/// Makes this process' jail, and runs `on_vcpu` in a thread confined like a vCPU's and `on_main` in the main thread.
int in_jail(const std::function<void()>& on_vcpu, const std::function<void()>& on_main = {},
            const Jail::Options& options = {}) {
  Log log;
  const auto jail = Jail::create(options, log);
  if (!jail) return fail(jail.error());
  if (const auto entered = (*jail)->enter(); !entered) return fail(entered.error());
  std::thread vcpu{[&] {
    ::prctl(PR_SET_NAME, "vcpu7");
    if (const auto confined = (*jail)->confine_vcpu(); !confined) ::_exit(fail(confined.error()));
    if (on_vcpu) on_vcpu();
  }};
  if (const auto confined = (*jail)->confine_main(); !confined) return fail(confined.error());
  if (on_main) on_main();
  vcpu.join();
  return survived;
}

struct Attempt {
  const char* call;
  std::function<void()> make;
};

/// Calls that no thread may make. Raw system calls, because the C library might answer without the kernel.
std::vector<Attempt> ways_out() {
  constexpr auto protection = PROT_READ | PROT_WRITE | PROT_EXEC;
  const auto call = [](long number, auto... arguments) { return [=] { (void)::syscall(number, arguments...); }; };
  static std::array<char, 10> program{"/bin/true"};
  static std::array<char*, 2> words{program.data(), nullptr};
  static std::array<char, 64> room{};
  static void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return {
      {"openat", call(SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY)},
      {"open", call(SYS_open, "/etc/passwd", O_RDONLY)},
      {"creat", call(SYS_creat, "/tmp/jail_test", 0600)},
      {"openat2", call(SYS_openat2, AT_FDCWD, "/etc/passwd", room.data(), 24)},
      {"unlink", call(SYS_unlink, "/tmp/jail_test")},
      {"rename", call(SYS_rename, "/tmp/jail_test", "/tmp/jail_test2")},
      {"linkat", call(SYS_linkat, AT_FDCWD, "/tmp/jail_test", AT_FDCWD, "/tmp/jail_test2", 0)},
      {"mkdir", call(SYS_mkdir, "/tmp/jail_test", 0700)},
      {"chmod", call(SYS_chmod, "/tmp/jail_test", 0777)},
      {"execve", call(SYS_execve, "/bin/true", words.data(), words.data() + 1)},
      {"execveat", call(SYS_execveat, AT_FDCWD, "/bin/true", words.data(), words.data() + 1, 0)},
      {"fork", call(SYS_fork)},
      {"vfork", call(SYS_vfork)},
      {"clone", call(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0)},
      {"socket", call(SYS_socket, AF_UNIX, SOCK_STREAM, 0)},
      {"socket", call(SYS_socket, AF_INET, SOCK_STREAM, 0)},
      {"connect", call(SYS_connect, 0, room.data(), 16)},
      {"bind", call(SYS_bind, 0, room.data(), 16)},
      {"listen", call(SYS_listen, 0, 1)},
      {"ptrace", call(SYS_ptrace, PTRACE_ATTACH, ::getppid(), nullptr, nullptr)},
      {"process_vm_readv", call(SYS_process_vm_readv, ::getppid(), nullptr, 0, nullptr, 0, 0)},
      {"pidfd_open", call(SYS_pidfd_open, ::getppid(), 0)},
      {"kill", call(SYS_kill, ::getppid(), 0)},
      {"tgkill", call(SYS_tgkill, ::getppid(), ::getppid(), 0)},
      {"setuid", call(SYS_setuid, 0)},
      {"unshare", call(SYS_unshare, CLONE_NEWUSER)},
      {"mount", call(SYS_mount, "none", "/tmp/jail_test", "tmpfs", 0, nullptr)},
      {"chroot", call(SYS_chroot, "/tmp")},
      {"prlimit64", call(SYS_prlimit64, 0, RLIMIT_CORE, room.data(), nullptr)},
      {"prctl", call(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0)},
      {"io_uring_setup", call(SYS_io_uring_setup, 1, room.data())},
      {"bpf", call(SYS_bpf, 0, room.data(), 64)},
      {"userfaultfd", call(SYS_userfaultfd, 0)},
      {"keyctl", call(SYS_keyctl, 0, 0, 0)},
      {"ioctl", call(SYS_ioctl, 0, TIOCSTI, "x")},
      {"mmap", call(SYS_mmap, nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)},
      {"mprotect", call(SYS_mprotect, page, 4096, protection)},
  };
}

void expect_named_end(const Ended& ended, const std::string& thread, const std::string& call) {
  EXPECT_EQ(ended.exit_code, 1) << call << ": " << ended.errors;
  EXPECT_NE(ended.errors.find("its thread " + thread + " made the system call " + call + " ("), std::string::npos)
      << call << ": " << ended.errors;
  EXPECT_EQ(std::ranges::count(ended.errors, '\n'), 1) << ended.errors;
}

constexpr const char* mains_name = "vmm_jail_tests";

class JailTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a build with sanitizers has no system call filters";
#endif
  }
};

TEST_F(JailTest, AVcpusThreadGetsOutByNoCallAndTheEndNamesIt) {
  for (const Attempt& attempt : ways_out())
    expect_named_end(in_a_process([&] { return in_jail(attempt.make); }), "vcpu7", attempt.call);
}

TEST_F(JailTest, NorDoesTheSessionsThread) {
  for (const Attempt& attempt : ways_out())
    expect_named_end(in_a_process([&] { return in_jail({}, attempt.make); }), mains_name, attempt.call);
}

TEST_F(JailTest, NorAThreadThatWasThereBefore) {
  for (const Attempt& attempt : ways_out()) {
    const Ended ended = in_a_process([&] {
      std::array<int, 2> pipe{};
      (void)!::pipe(pipe.data());
      std::thread before{[&] {
        char byte{};
        (void)!::read(pipe[0], &byte, 1);
        attempt.make();
      }};
      return in_jail({}, [&] {
        (void)!::write(pipe[1], "x", 1);
        before.join();
      });
    });
    if (std::string_view{attempt.call} == "openat") {
      EXPECT_EQ(ended.exit_code, survived) << "it fails: see the next test";
    } else {
      expect_named_end(ended, mains_name, attempt.call);
    }
  }
}

TEST_F(JailTest, BeforeAVcpuIsConfinedItOpensNothingEither) {
  const Ended ended = in_a_process([] {
    Log log;
    const auto jail = Jail::create({}, log);
    if (!jail || !(*jail)->enter()) return cannot_begin;
    int code = 1;
    std::thread vcpu{[&] {
      if (::open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES) code = survived;
    }};
    vcpu.join();
    return code;
  });
  EXPECT_EQ(ended.exit_code, survived) << ended.errors;
}

TEST_F(JailTest, AVcpusThreadHasLessThanTheSessions) {
  const std::vector<Attempt> of_the_session{{"accept4", [] { (void)::accept4(0, nullptr, nullptr, 0); }},
                                            {"shutdown", [] { (void)::shutdown(0, SHUT_WR); }},
                                            {"fsync", [] { (void)::fsync(0); }}};
  for (const Attempt& attempt : of_the_session) {
    expect_named_end(in_a_process([&] { return in_jail(attempt.make); }), "vcpu7", attempt.call);
    EXPECT_EQ(in_a_process([&] { return in_jail({}, attempt.make); }).exit_code, survived) << attempt.call;
  }
}

TEST_F(JailTest, OnlyWhoCountsByPerfGetsEventsFromTheStewardWhileTheGuestRuns) {
  const auto open_event = [] { (void)::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0UL); };
  const auto receive = [] { (void)::recvmsg(-1, nullptr, 0); };
  const Jail::Options by_perf{.counts_by_perf = true};
  expect_named_end(in_a_process([&] { return in_jail(open_event, {}, by_perf); }), "vcpu7", "perf_event_open");
  expect_named_end(in_a_process([&] { return in_jail({}, open_event, by_perf); }), mains_name, "perf_event_open");
  EXPECT_EQ(in_a_process([&] { return in_jail(receive, {}, by_perf); }).exit_code, survived);
  expect_named_end(in_a_process([&] { return in_jail(receive); }), "vcpu7", "recvmsg");
}

TEST_F(JailTest, OnlyAVcpuWithDevicesOutsideSendsToThem) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd here{ends[0]}, there{ends[1]};
  // Every system call that virtio/ makes on a vCPU's thread.
  const auto talk = [&] {
    char byte = 'x';
    iovec part{.iov_base = &byte, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    pollfd waiting{.fd = here.get(), .events = POLLOUT, .revents = 0};
    const timespec soon{.tv_sec = 0, .tv_nsec = 1000};
    if (::poll(&waiting, 1, 1000) != 1 || ::ppoll(&waiting, 1, &soon, nullptr) != 1 ||
        ::sendmsg(here.get(), &message, MSG_NOSIGNAL) != 1 || ::write(there.get(), &byte, 1) != 1 ||
        ::read(here.get(), &byte, 1) != 1)
      ::_exit(1);
  };
  const Ended talks = in_a_process([&] { return in_jail(talk, {}, {.outside_devices = true}); });
  EXPECT_EQ(talks.exit_code, survived) << talks.errors;
  expect_named_end(in_a_process([&] { return in_jail(talk); }), "vcpu7", "sendmsg");
}

TEST_F(JailTest, AVcpuDoesItsWorkThere) {
  MappedHostCode code;
  const auto work = [&code] {
    if (!install_kick_handler()) ::_exit(2);
    constexpr std::array routine{std::byte{0xB8}, std::byte{42}, std::byte{0},
                                 std::byte{0},    std::byte{0},  std::byte{0xC3}};  // mov $42, %eax; ret
    const auto* const at = code.add(routine);
    if (at == nullptr || reinterpret_cast<int (*)()>(reinterpret_cast<std::uintptr_t>(at))() != 42) ::_exit(3);
    if (!GuestMemory::create(16U << 20U)) ::_exit(4);
    if (const std::vector<char> large(64U << 20U, 'x'); large.back() != 'x') ::_exit(5);
    // The way to read KVM's own counters.
    char byte{};
    (void)!::pread(STDIN_FILENO, &byte, 1, 0);
    const std::time_t epoch = 0;
    if (std::tm date{}; ::gmtime_r(&epoch, &date) == nullptr) ::_exit(6);
    kick_thread(this_thread());
  };
  const Ended ended = in_a_process([&] { return in_jail(work); });
  EXPECT_EQ(ended.exit_code, survived) << ended.errors;
}

TEST_F(JailTest, ATimerThatWasOpenedBeforeKicksAVcpuThere) {
  const Ended ended = in_a_process([] {
    Log log;
    const auto jail = Jail::create({}, log);
    if (!jail || !install_kick_handler() || !(*jail)->enter()) return cannot_begin;
    int code = 3;
    std::thread vcpu{[&] {
      volatile std::uint8_t kicked = 0;
      const KickTarget target{&kicked};
      const auto timer = CpuTimer::create();
      if (!timer || !(*jail)->confine_vcpu() || !(*timer)->arm(std::chrono::milliseconds{5})) return;
      while (kicked == 0) {
      }
      code = (*timer)->disarm() ? survived : 4;
    }};
    vcpu.join();
    return code;
  });
  EXPECT_EQ(ended.exit_code, survived) << ended.errors;
}

TEST_F(JailTest, LowersItsLimits) {
  const Ended ended = in_a_process([] {
    Log log;
    const auto jail = Jail::create({.cpus = 2}, log);
    if (!jail || !(*jail)->enter()) return cannot_begin;
    rlimit core{}, files{}, memory{};
    ::getrlimit(RLIMIT_CORE, &core);
    ::getrlimit(RLIMIT_NOFILE, &files);
    ::getrlimit(RLIMIT_AS, &memory);
    if (core.rlim_max != 0 || files.rlim_max > 128 + 2 * 32) return 1;
    return memory.rlim_cur >= (3ULL << 30U) && memory.rlim_cur < (64ULL << 30U) ? survived : 2;
  });
  EXPECT_EQ(ended.exit_code, survived) << ended.errors;
}

/// The lines of /proc/self/status with this process' ids and capabilities.
std::string rights() {
  std::ifstream file{"/proc/self/status"};
  std::string all;
  for (std::string line; std::getline(file, line);)
    for (const char* const name : {"Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"})
      if (line.starts_with(name)) {
        std::istringstream words{line};
        for (std::string word; words >> word;) all += word + ' ';
      }
  return all;
}

/// The effective capabilities of the calling thread, from /proc.
std::string capabilities() {
  std::ifstream status{"/proc/thread-self/status"};
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("CapEff:")) return line.substr(line.find_last_of('\t') + 1);
  return "none told";
}

TEST(Identity, WhatIsTriedAsJailedHasNoMoreThanCapPerfmon) {
  const std::string before = capabilities();
  std::string jailed;
  ASSERT_TRUE(as_jailed([&] { jailed = capabilities(); }));
  EXPECT_EQ(std::stoull(jailed, nullptr, 16), std::stoull(before, nullptr, 16) & std::uint64_t{1} << 38);
  EXPECT_EQ(capabilities(), before);
}

TEST(Identity, RootBecomesNobodyAndKeepsNoCapability) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Ended ended = in_a_process([] {
    const auto user = jail_user("");
    if (!user || !*user || !become(*user, Capabilities::none)) return cannot_begin;
    const std::string now = rights();
    (void)!::write(STDERR_FILENO, now.data(), now.size());
    return ::setuid(0) == 0 ? 1 : survived;
  });
  EXPECT_EQ(ended.exit_code, survived);
  const std::string none = "0000000000000000 ";
  EXPECT_EQ(ended.errors, "Uid: 65534 65534 65534 65534 Gid: 65534 65534 65534 65534 Groups: CapInh: " + none +
                              "CapPrm: " + none + "CapEff: " + none + "CapBnd: " + none + "CapAmb: " + none);
}

TEST(Identity, TheOneCapabilityThatStaysGoesWhenItIsDropped) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Ended ended = in_a_process([] {
    const auto user = jail_user("nobody");
    if (!user || !become(*user, Capabilities::perfmon)) return cannot_begin;
    const bool kept = rights().find("CapEff: 0000004000000000 ") != std::string::npos;
    const bool dropped =
        drop_capabilities() && rights().find("CapPrm: 0000000000000000 CapEff: 0000000000000000 ") != std::string::npos;
    return kept && dropped ? survived : 1;
  });
  EXPECT_EQ(ended.exit_code, survived);
}

TEST(Identity, WhoCannotBeTakenIsRefused) {
  const auto refusal = [](const std::string& name) {
    const auto user = jail_user(name);
    return user ? std::string{} : describe(user.error());
  };
  EXPECT_NE(refusal("no-such-user").find("no user no-such-user on this host; give one with --user"), std::string::npos);
  EXPECT_NE(refusal("99999999").find("no user 99999999"), std::string::npos);
  EXPECT_NE(refusal("root").find("does not run as root"), std::string::npos);
  EXPECT_NE(refusal("0").find("does not run as root"), std::string::npos);
}

TEST(Landlock, ForbidsAllFilesAndLeavesWhatIsOpen) {
  const auto version = landlock_version();
  if (!version) GTEST_SKIP() << "this kernel has no landlock";
  const Ended ended = in_a_process([&] {
    const Fd open{::open("/etc/passwd", O_RDONLY | O_CLOEXEC)};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || !forbid_all_files(*version)) return cannot_begin;
    char byte{};
    if (::open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES) return 1;
    if (::open("/tmp", O_TMPFILE | O_RDWR, 0600) >= 0 || errno != EACCES) return 2;
    if (::mkdir("/tmp/jail_test", 0700) == 0 || errno != EACCES) return 3;
    ::execl("/bin/true", "true", nullptr);
    if (errno != EACCES) return 4;
    return ::read(open.get(), &byte, 1) == 1 ? survived : 5;
  });
  EXPECT_EQ(ended.exit_code, survived);
}

}  // namespace
}  // namespace vmm::test
