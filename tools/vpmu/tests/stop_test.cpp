#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/code_file.hpp"
#include "standard_stream.hpp"

// A machine can be inspected and stopped whatever its guest does. Runs the real program.

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

pid_t start(std::vector<std::string> arguments, const fs::path& output) {
  arguments.insert(arguments.begin(), VPMU_PROGRAM);
  const pid_t child = ::fork();
  if (child != 0) return child;
  become_stream(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  become_stream(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  ::_exit(127);
}

/// Waits for the child and returns its exit code; -1 if a signal ended it. Kills it after `patience`.
int end_of(pid_t child, std::chrono::seconds patience) {
  int status = 0;
  for (auto left = std::chrono::milliseconds{patience}; left > 0ms; left -= 20ms) {
    if (::waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(20ms);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  ADD_FAILURE() << "it does not end";
  return -1;
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file{path};
  return nlohmann::json::parse(file, nullptr, false);
}

class StoppedMachine : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override {
    if (machine_ != 0) ::kill(machine_, SIGKILL);
    fs::remove_all(directory_);
  }

  /// The output of `vpmu ctl SOCKET counters` once a PMI waits.
  nlohmann::json counters_with_a_pmi() {
    nlohmann::json vcpu = nlohmann::json::object();
    for (int tries = 0; tries < 200; ++tries) {
      const pid_t child = start({"ctl", socket_, "counters"}, directory_ / "counters");
      if (end_of(child, 30s) == 0) vcpu = read_json(directory_ / "counters").at("counters").at("vcpus").at(0);
      if (vcpu.value("pmu.pmi.requested", 0) != 0) break;
      std::this_thread::sleep_for(50ms);
    }
    return vcpu;
  }

  pid_t machine_{};
  fs::path directory_{fs::path{testing::TempDir()} / ("stop_" + std::to_string(::getpid()))};
  std::string socket_{directory_ / "socket"}, statistics_{directory_ / "statistics"};
};

// LVTPC is masked, as after reset, so that the PMI waits.
TEST_F(StoppedMachine, IsLookedAtAndEndsBySigtermWhileAPmiWaits) {
  const vmm::test::CodeFile kernel{vmm::test::pmi_that_waits};
  for (const std::string source : {"exact", "clock"}) {
    SCOPED_TRACE(source);
    machine_ = start({"run", "--accel", "soft", "--source", source, "--kernel", kernel.path(), "--memory", "16M",
                      "--control", socket_, "--stats", statistics_},
                     directory_ / "console");
    const nlohmann::json now = counters_with_a_pmi();
    EXPECT_GT(now.value("pmu.pmi.requested", 0), 0) << now;
    EXPECT_TRUE(now.contains("vcpu.late_kicks")) << now;
    ::kill(machine_, SIGTERM);
    EXPECT_EQ(end_of(std::exchange(machine_, 0), 30s), 6);
    const nlohmann::json last = read_json(statistics_);
    ASSERT_FALSE(last.is_discarded());
    const nlohmann::json& vcpu = last.at("vcpus").at(0);
    // While a counter counts, the source exact runs the instructions.
    EXPECT_GT(
        vcpu.value("soft.instructions", std::uint64_t{0}) + vcpu.value("pmu.exact.instructions", std::uint64_t{0}),
        100U);
    EXPECT_FALSE(fs::exists(socket_));
  }
}

}  // namespace
}  // namespace vmm::tool::test
