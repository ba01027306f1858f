#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// How a program of this machine ended.
struct ToolEnd {
  int exit_code{};
  std::string said;  ///< The end of its standard error.
};

/// Runs a program of PATH with no input, in an environment that makes it say the same on each machine, and hands over
/// what it prints, part by part. When `take` says no, the program is ended. Fails where it cannot be started, and where
/// a signal ends it that is not ours.
Result<ToolEnd> run_tool(const std::vector<std::string>& command, const std::function<bool(std::string_view)>& take);

}  // namespace vmm::tool
