#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kvm/fd.hpp"
#include "program.hpp"

namespace vmm::tool::test {

/// jmp .
inline constexpr std::string_view spin{"\xEB\xFE"};

/// A machine that runs without KVM, with a control socket and a statistics file.
class MachineProgram : public Program {
 protected:
  [[nodiscard]] std::string path(const char* name) const { return directory_ / name; }

  /// Starts a machine that runs `code`, and waits until it answers or has ended.
  Started start_machine(std::string_view code, int output = -1, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"run",      "--accel",       "soft",      "--source",     "exact",
                                       "--kernel", kernel_of(code), "--control", path("control")};
    if (std::ranges::find(more, "--stats") == more.end()) more.insert(more.end(), {"--stats", path("stats")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Started machine = start(arguments, {.output = output});
    for (int i = 0; i < 6000 && !connect().valid() && !has_ended(machine); ++i) ::usleep(10'000);
    return machine;
  }

  static bool has_ended(const Started& machine) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(machine.child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }

  Fd connect() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path("control").copy(address.sun_path, sizeof address.sun_path - 1);
    Fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.reset();
    return socket;
  }

  /// The output of `vpmu ctl`, by a file of its own: the machine writes to the fixture's.
  std::string ctl(const std::vector<std::string>& arguments) {
    const Fd file{::open(path("reply").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    std::vector<std::string> all{"ctl", path("control")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    exit_code_ = end(start(all, {.output = file.get(), .errors = "ctl_err"})).exit_code;
    return read_file(path("reply"));
  }

  /// Waits until the machine's counters do not have that text any more.
  void wait_for_counters_without(const std::string& text) {
    for (int i = 0; i < 6000 && ctl({"counters"}).find(text) != std::string::npos; ++i) ::usleep(10'000);
  }

  /// What must hold after every end by a signal.
  void expect_clean_end(const Ended& ended) const {
    EXPECT_EQ(ended.exit_code, 6) << ended.errors;
    EXPECT_NE(read_file(path("stats")).find("\"console.bytes\":"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("control")));
  }

  int exit_code_{};
};

}  // namespace vmm::tool::test
