#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sources/time_model.hpp"
#include "support/result.hpp"
#include "uarch/profile_changes.hpp"

namespace vmm::tool {

struct ExecArguments;

/// A run of this machine's perf in the guest, which counts or samples a command.
struct GuestPerfRun {
  std::string accel;   ///< "soft" or "kvm".
  std::string source;  ///< What counts, chosen.
  TimeModel time{};
  vpmu::uarch::ProfileChanges changes{};  ///< Of --set.
  std::string kernel;                     ///< Its version.
  std::uint64_t memory_bytes{};
};

/// So that counts are the same on each host, a command gets only variables that decide how programs work, and `more`.
bool is_kept_variable(std::string_view variable, const std::vector<std::string>& more);

/// What will run the command; starts nothing. Fails as run_exec() would.
Result<GuestPerfRun> describe_guest(const ExecArguments& arguments);

}  // namespace vmm::tool
