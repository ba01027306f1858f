#include "test_kernel/guest/work.hpp"

#include <unistd.h>

#include <array>
#include <climits>

namespace vmm::tool::checker {
namespace {

constexpr int no_event = -1;  // perf itself opens the events

}  // namespace

int do_work(std::string_view name) {
  if (name == loop_work) {
    std::array<std::uint64_t, 2> memory{};
    vpmu_known_loop(no_event, long_loop.rounds, memory.data());
    return 0;
  }
  if (name != frames_work) return 2;
  vpmu_known_frames(no_event, frames_work_rounds);
  return 0;
}

std::vector<std::string> work_command(std::string_view name) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  return {std::string{path.data(), length > 0 ? static_cast<std::size_t>(length) : 0}, std::string{work_argument},
          std::string{name}};
}

}  // namespace vmm::tool::checker
