#include "peers.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace vpmu::exec::bench {
namespace {

bool in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders{path != nullptr ? path : ""};
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + '/' + program).c_str(), X_OK) == 0) return true;
  return false;
}

/// Runs it with its output thrown away.
std::optional<double> seconds_of(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_RDWR);
    for (const int output : {STDOUT_FILENO, STDERR_FILENO})
      if (nowhere >= 0) ::dup2(nowhere, output);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  rusage used{};
  if (::wait4(child, &status, 0, &used) != child || status != 0) return std::nullopt;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

std::vector<Peer> installed_peers(const std::string& self) {
  std::vector<Peer> peers;
  if (in_path("qemu-x86_64")) {
    const std::string plugin = self.substr(0, self.rfind('/') + 1) + "libvpmu_count_plugin.so";
    peers.push_back({"qemu", {"qemu-x86_64"}});
    peers.push_back(
        {"qemu, counts", {"qemu-x86_64", "-plugin", plugin + ",mode=inline", "-d", "plugin", "-D", "/dev/null"}});
    peers.push_back(
        {"qemu, callbacks", {"qemu-x86_64", "-plugin", plugin + ",mode=callbacks", "-d", "plugin", "-D", "/dev/null"}});
  }
  if (in_path("valgrind")) {
    peers.push_back({"valgrind", {"valgrind", "-q", "--tool=none"}});
    peers.push_back({"cachegrind", {"valgrind", "-q", "--tool=cachegrind", "--cachegrind-out-file=/dev/null"}});
  }
  return peers;
}

std::optional<double> time_under(const Peer& peer, const std::string& self, const std::string& kernel,
                                 std::uint64_t work) {
  const auto with = [&](std::uint64_t w) {
    std::vector<std::string> command = peer.command;
    command.insert(command.end(), {self, "--native", kernel, std::to_string(w)});
    return seconds_of(command);
  };
  const auto start = with(0);
  const auto all = with(work);
  if (!start || !all || *all <= *start) return std::nullopt;
  return *all - *start;
}

}  // namespace vpmu::exec::bench
