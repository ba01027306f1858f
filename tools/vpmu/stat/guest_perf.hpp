#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

struct ExecArguments;

/// Of a command that counts or samples by this machine's perf in its guest.
struct GuestPerfRun {
  std::string accel;   ///< "soft" or "kvm".
  std::string source;  ///< What counts, settled.
  std::string kernel;  ///< Its version.
  std::uint64_t memory_bytes{};
};

/// What shows in counts is the same on each host: of the environment only what decides how a program works, and `more`.
bool is_kept_variable(std::string_view variable, const std::vector<std::string>& more);

/// What will run the command; starts nothing. Fails as run_exec() would.
Result<GuestPerfRun> describe_guest(const ExecArguments& arguments);

}  // namespace vmm::tool
