#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kvm/fd.hpp"
#include "machine_program.hpp"

// A running machine in a world that does not cooperate: readers that stop reading, silent clients, too many clients.
// Runs the real program.

namespace vmm::tool::test {
namespace {

using namespace std::string_view_literals;

/// mov $0x3F8, %edx; mov $'x', %al; out %al, (%dx); jmp to the OUT.
constexpr auto write_for_ever = "\xBA\xF8\x03\x00\x00\xB0x\xEE\xEB\xFD"sv;

std::array<Fd, 2> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {Fd{ends[0]}, Fd{ends[1]}};
}

using RunningMachine = MachineProgram;

/// Sends the text and as many copies of a descriptor with it.
template <std::size_t copies>
ssize_t send_with_descriptors(const Fd& to, std::string_view text, const Fd& descriptor) {
  iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(copies * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(copies * sizeof(int));
  std::array<int, copies> all{};
  all.fill(descriptor.get());
  std::memcpy(CMSG_DATA(rights), all.data(), sizeof all);
  return ::sendmsg(to.get(), &message, MSG_NOSIGNAL);
}

TEST_F(RunningMachine, EndsBySignalsThoughNobodyReadsItsOutput) {
  const auto pipe = make_pipe();
  const Started machine = start_machine(write_for_ever, pipe[1].get());
  wait_for_counters_without("\"console.dropped_bytes\":0}");
  ::kill(machine.child, SIGTERM);
  const Ended ended = end(machine);
  expect_clean_end(ended);
  EXPECT_NE(ended.errors.find("bytes of the guest's console are lost: its reader was too slow"), std::string::npos)
      << ended.errors;
}

TEST_F(RunningMachine, EndsWhenItsReaderHasGone) {
  auto pipe = make_pipe();
  const Started machine = start_machine(write_for_ever, pipe[1].get());
  pipe[0].reset();
  pipe[1].reset();
  const Ended ended = end(machine);
  expect_clean_end(ended);
  EXPECT_NE(ended.errors.find("its reader has gone"), std::string::npos) << ended.errors;
}

TEST_F(RunningMachine, EndsAlikeByEachSignalThatAsksForIt) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    const Started machine = start_machine(spin);
    ::kill(machine.child, signal);
    const Ended ended = end(machine);
    expect_clean_end(ended);
    EXPECT_EQ(ended.errors, "") << ::strsignal(signal);
  }
}

TEST_F(RunningMachine, EndsAfterItsTime) {
  const Started machine = start_machine(spin, -1, {"--timeout", "1"});
  const Ended ended = end(machine);
  EXPECT_EQ(ended.exit_code, 7);
  EXPECT_NE(ended.errors.find("stopped after 1 s (--timeout)"), std::string::npos) << ended.errors;
  EXPECT_NE(ended.errors.find("panic=-1"), std::string::npos) << ended.errors;
  EXPECT_NE(read_file(path("stats")), "");
}

TEST_F(RunningMachine, TellsOfOutputThatItsFileDoesNotTake) {
  const Started machine = start_machine(write_for_ever, -1, {"--console", "/dev/full", "--stats", "/dev/full"});
  wait_for_counters_without("\"console.dropped_bytes\":0}");
  ::kill(machine.child, SIGTERM);
  const Ended ended = end(machine);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.errors.find("bytes of the guest's console are lost: cannot write them: No space left on device"),
            std::string::npos)
      << ended.errors;
  EXPECT_NE(ended.errors.find("cannot write the statistics file /dev/full: No space left on device"), std::string::npos)
      << "each failure has a line";
}

TEST_F(RunningMachine, TakesClientsAgainWhenThereAreDescriptorsAgain) {
  // In the jail it belongs to another user, whose limits not every root may change.
  const Started machine = start_machine(spin, -1, {"--no-jail"});
  EXPECT_NE(ctl({"status"}).find("\"running\""), std::string::npos);
  rlimit before{};
  const rlimit none{.rlim_cur = 3, .rlim_max = 4096};
  ASSERT_EQ(::prlimit(machine.child, RLIMIT_NOFILE, &none, &before), 0);
  EXPECT_EQ(ctl({"status", "--timeout", "0.3"}), "");
  EXPECT_EQ(exit_code_, 1);
  EXPECT_NE(read_file(path("ctl_err")).find("has not answered within 0.3 seconds"), std::string::npos)
      << read_file(path("ctl_err"));
  const rlimit enough{.rlim_cur = 1024, .rlim_max = 4096};
  ASSERT_EQ(::prlimit(machine.child, RLIMIT_NOFILE, &enough, nullptr), 0);
  EXPECT_NE(ctl({"status", "--timeout", "60"}).find("\"running\""), std::string::npos) << read_file(path("ctl_err"));
  ::kill(machine.child, SIGTERM);
  EXPECT_NE(end(machine).errors.find("Too many open files; trying again"), std::string::npos);
}

/// In the jail, which permits it few descriptors.
TEST_F(RunningMachine, IdleClientsKeepNobodyWaiting) {
  const Started machine = start_machine(spin);
  std::vector<Fd> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(connect());
    ASSERT_TRUE(idle.back().valid());
    // Some have begun a request, some do not take their answer.
    const std::string_view text = i % 3 == 0 ? "" : i % 3 == 1 ? "{\"comm" : "{\"command\":\"counters\"}\n";
    EXPECT_EQ(::send(idle.back().get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  EXPECT_NE(ctl({"status"}).find("\"running\""), std::string::npos) << read_file(path("ctl_err"));
  ::kill(machine.child, SIGTERM);
  const Ended ended = end(machine);
  expect_clean_end(ended);
  EXPECT_EQ(ended.errors, "") << "it never was without descriptors";
}

TEST_F(RunningMachine, KeepsNoDescriptorsThatClientsSend) {
  const Started machine = start_machine(spin);
  const Fd client = connect();
  const Fd null{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  for (int i = 0; i < 200; ++i) ASSERT_EQ(send_with_descriptors<2>(client, " ", null), 1);
  EXPECT_NE(ctl({"status"}).find("\"running\""), std::string::npos) << read_file(path("ctl_err"));
  ::kill(machine.child, SIGTERM);
  const Ended ended = end(machine);
  expect_clean_end(ended);
  EXPECT_EQ(ended.errors, "");
}

// `vpmu ctl` sends a pipe, and writes the file itself: that file's server may be gone.
TEST_F(RunningMachine, EndsBySignalsThoughNobodyTakesItsSnapshot) {
  const Started machine = start_machine(spin);
  const Fd client = connect();
  const auto pipe = make_pipe();
  ASSERT_GT(send_with_descriptors<1>(client, "{\"command\":\"snapshot\"}\n", pipe[1]), 0);
  int written = 0;
  for (int i = 0; i < 1000 && written == 0; ++i) {
    ::usleep(10'000);
    ASSERT_EQ(::ioctl(pipe[0].get(), FIONREAD, &written), 0);
  }
  ASSERT_GT(written, 0);
  EXPECT_NE(ctl({"status"}).find("\"running\""), std::string::npos);
  EXPECT_NE(ctl({"counters"}).find("\"vcpus\""), std::string::npos);
  EXPECT_NE(ctl({"snapshot", path("other")}).find("another snapshot of this guest is being written"),
            std::string::npos);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(machine.child, SIGTERM);
  expect_clean_end(end(machine));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{10}) << "the machine may be busy";
}

TEST_F(RunningMachine, AnswersOrSaysWhyNot) {
  const Started machine = start_machine(spin);
  const Fd socket = connect();
  const std::string request(5000, ' ');
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), 5000);
  std::string reply(4096, '\0');
  const auto got = ::recv(socket.get(), reply.data(), reply.size(), 0);
  ASSERT_GT(got, 0);
  EXPECT_NE(reply.find("{\"error\":\"the request has more than 4096 bytes; the connection is closed\",\"ok\":false}\n"),
            std::string::npos)
      << reply;
  EXPECT_LE(::recv(socket.get(), reply.data(), reply.size(), 0), 0);
  const Fd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  EXPECT_EQ(end(start({"ctl", path("control"), "status"}, {.output = full.get(), .errors = "ctl_err"})).exit_code, 1);
  EXPECT_NE(read_file(path("ctl_err")).find("cannot write all of it to standard output"), std::string::npos);
  EXPECT_NE(ctl({"stop"}).find("true"), std::string::npos);
  expect_clean_end(end(machine));
}

}  // namespace
}  // namespace vmm::tool::test
