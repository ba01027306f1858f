#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
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
