#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "machine_program.hpp"

// The rights of a running machine, as the kernel reports them. Runs the real program.

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr const char* no_capability = "0000000000000000";

/// Maps "Name:" to the rest of its line, with runs of blanks as one.
using Status = std::map<std::string, std::string>;

Status status_in(const fs::path& path) {
  std::ifstream file{path};
  Status status;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words{line};
    std::string name, word;
    words >> name;
    while (words >> word) status[name] += (status[name].empty() ? "" : " ") + word;
  }
  return status;
}

std::vector<Status> threads_of(pid_t process) {
  std::vector<Status> all;
  for (const auto& thread : fs::directory_iterator{"/proc/" + std::to_string(process) + "/task"})
    all.push_back(status_in(thread.path() / "status"));
  return all;
}

/// A mapping of smaps.
struct Mapped {
  std::uint64_t bytes;
  std::string access;
  std::string flags;
};

std::vector<Mapped> mappings_of(pid_t process) {
  std::ifstream file{"/proc/" + std::to_string(process) + "/smaps"};
  std::vector<Mapped> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words{line};
    std::string first, second;
    words >> first >> second;
    if (first == "VmFlags:") {
      all.back().flags = line + ' ';
    } else if (const auto dash = first.find('-'); dash != std::string::npos && first.back() != ':') {
      all.push_back({std::stoull(first.substr(dash + 1), nullptr, 16) - std::stoull(first, nullptr, 16), second, {}});
    }
  }
  return all;
}

class JailedMachine : public MachineProgram {
 protected:
  void SetUp() override {
    MachineProgram::SetUp();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a build with sanitizers has no system call filters";
#endif
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  /// Waits until the guest runs: the socket is there before the jail.
  Started start_spinning(std::vector<std::string> more = {}) {
    const Started machine = start_machine(spin, -1, std::move(more));
    EXPECT_NE(ctl({"counters"}).find("vcpus"), std::string::npos);
    return machine;
  }
  Ended stop(const Started& machine) {
    ::kill(machine.child, SIGTERM);
    return end(machine);
  }
};

TEST_F(JailedMachine, EachThreadHasAFilterAndNobodysRights) {
  const Started machine = start_spinning();
  const auto nobody = std::to_string(::getpwnam("nobody")->pw_uid);
  const auto threads = threads_of(machine.child);
  EXPECT_GE(threads.size(), 2U);
  bool vcpu = false;
  for (Status status : threads) {
    vcpu = vcpu || status["Name:"] == "vcpu0";
    EXPECT_EQ(status["Seccomp:"], "2") << status["Name:"];
    EXPECT_EQ(status["NoNewPrivs:"], "1") << status["Name:"];
    EXPECT_EQ(status["Uid:"], nobody + ' ' + nobody + ' ' + nobody + ' ' + nobody) << status["Name:"];
    EXPECT_EQ(status["Groups:"], "") << status["Name:"];
    for (const char* const set : {"CapInh:", "CapPrm:", "CapEff:", "CapAmb:"})
      EXPECT_EQ(status[set], no_capability) << status["Name:"] << ' ' << set;
    // The other threads were started before the jail. They cannot regain rights either: they execute no program, and
    // have no_new_privs.
    const bool begun_in_jail = status["Name:"] == "vcpu0" || status["Pid:"] == std::to_string(machine.child);
    EXPECT_EQ(status["CapBnd:"] == no_capability, begun_in_jail) << status["Name:"];
    EXPECT_EQ(status["Seccomp_filters:"], begun_in_jail ? "2" : "1")
        << status["Name:"] << ": the process', and its own";
  }
  EXPECT_TRUE(vcpu);
  stop(machine);
}

TEST_F(JailedMachine, IsBounded) {
  const Started machine = start_spinning();
  std::ifstream file{"/proc/" + std::to_string(machine.child) + "/limits"};
  std::map<std::string, std::uint64_t> hard;
  for (std::string line; std::getline(file, line);) {
    // Columns: the name (26 characters), the soft limit (21), the hard limit.
    if (std::uint64_t value = 0; line.size() > 47 && std::istringstream{line.substr(47)} >> value)
      hard[line.substr(0, line.find("  "))] = value;
  }
  EXPECT_EQ(hard.at("Max core file size"), 0U);
  EXPECT_LE(hard.at("Max open files"), 200U);
  EXPECT_LT(hard.at("Max address space"), 16ULL << 30U);
  stop(machine);
}

TEST_F(JailedMachine, HasNoMemoryThatIsWritableAndExecutableAndDumpsNoGuest) {
  const Started machine = start_spinning({"--memory", "128M"});
  bool guest = false, code = false;
  for (const Mapped& mapped : mappings_of(machine.child)) {
    EXPECT_FALSE(mapped.access.find('w') != std::string::npos && mapped.access.find('x') != std::string::npos)
        << mapped.access << ' ' << mapped.bytes;
    code = code || mapped.access == "r-xs";
    if (mapped.bytes < 128U << 20U || !mapped.access.starts_with("rw")) continue;
    guest = true;
    EXPECT_NE(mapped.flags.find(" dd "), std::string::npos) << "in no core file: " << mapped.flags;
    EXPECT_NE(mapped.flags.find(" dc "), std::string::npos) << "in no child: " << mapped.flags;
  }
  EXPECT_TRUE(guest);
  EXPECT_TRUE(code) << "the engine compiles";
  stop(machine);
}

TEST_F(JailedMachine, LeavesNothingBehindHoweverItEnds) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const Started machine = start_spinning();
    EXPECT_TRUE(fs::exists(path("control")));
    ::kill(machine.child, signal);
    const Ended ended = end(machine);
    EXPECT_EQ(ended.errors, "");
    EXPECT_EQ(ended.exit_code, signal == SIGKILL ? -1 : 6);
    // If the machine was killed, the broker cleans up after it.
    for (int i = 0; signal == SIGKILL && i < 6000 && fs::exists(path("control")); ++i) ::usleep(10'000);
    EXPECT_FALSE(fs::exists(path("control")));
  }
}

TEST_F(JailedMachine, RunsAsTheUserThatIsAskedFor) {
  const auto daemon = std::to_string(::getpwnam("daemon")->pw_uid);
  const Started machine = start_spinning({"--user", "daemon"});
  for (Status status : threads_of(machine.child))
    EXPECT_EQ(status["Uid:"], daemon + ' ' + daemon + ' ' + daemon + ' ' + daemon);
  stop(machine);
  expect_failure(run({"--kernel", kernel_, "--accel", "soft", "--user", "root"}), 2,
                 {"does not run as root", "--user", "--no-jail"});
  expect_failure(run({"--kernel", kernel_, "--accel", "soft", "--user", "no-such-user"}), 2, {"no user no-such-user"});
  expect_failure(run({"--kernel", kernel_, "--accel", "soft", "--user", "daemon", "--no-jail"}), 2,
                 {"--user without the jail"});
}

TEST_F(JailedMachine, WithoutTheJailItKeepsItsRightsAndSaysSo) {
  const Started machine = start_spinning({"--no-jail"});
  for (Status status : threads_of(machine.child)) {
    EXPECT_EQ(status["Seccomp:"], "0");
    EXPECT_TRUE(status["Uid:"].starts_with("0 "));
  }
  const Ended ended = stop(machine);
  EXPECT_EQ(
      ended.errors,
      "vpmu: warning: --no-jail: a guest that breaks out of its machine has all the rights that this process has\n");
  EXPECT_FALSE(fs::exists(path("control")));
}

}  // namespace
}  // namespace vmm::tool::test
