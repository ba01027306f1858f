#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "test_kernel/guest/known.hpp"

namespace vmm::tool::checker {

/// The first argument with which perf starts this program as the one to measure; the second is the work to do.
constexpr std::string_view work_argument = "work";
constexpr std::string_view loop_work = "loop";      ///< vpmu_known_loop(), long_loop.
constexpr std::string_view frames_work = "frames";  ///< vpmu_known_frames(), frames_work_rounds.
constexpr KnownLoop long_loop{.rounds = 200'000};
constexpr unsigned frames_work_rounds = 500'000;

/// Returns the exit code: 2 if there is no such work.
int do_work(std::string_view name);
/// The command that runs this work.
std::vector<std::string> work_command(std::string_view name);

}  // namespace vmm::tool::checker
