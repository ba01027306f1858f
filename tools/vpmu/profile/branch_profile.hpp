#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {

/// Whose branches are recorded.
enum class BranchesOf : std::uint8_t { user, kernel };

/// The options with which `perf record` takes a branch stack (LBR) for each `period` taken branches. Fails with kind
/// usage on a model or source that has no precise event for them.
Result<std::vector<std::string>> branch_options(const vpmu::GenerationDesc& generation, std::string_view source,
                                                BranchesOf of, std::uint64_t period);

/// Records that older readers of perf.data do not know are replaced by others that say nothing:
/// PERF_RECORD_FINISHED_INIT (82, Linux 6.0) by PERF_RECORD_FINISHED_ROUND (68). Both have a header alone. Returns how
/// many there were. Fails with kind host on what is no perf.data; the guest has written it.
Result<unsigned> make_readable(const std::string& path);

/// A file that a compiler or linker takes, and how it was made.
struct MadeProfile {
  std::string path, command;
};

/// What is made of DIRECTORY/perf.data for this program, by the tools that this machine has: NAME.fdata by perf2bolt,
/// NAME.prof by llvm-profgen. A tool that is not there, or fails, adds a sentence to `notes`.
std::vector<MadeProfile> make_profiles(const std::string& directory, const std::string& program,
                                       std::vector<std::string>& notes);

}  // namespace vmm::tool
