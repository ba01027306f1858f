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

/// Runs a program from PATH without input, in an environment that makes its output the same on each machine, and hands
/// over its output, part by part. When `take` returns false, the program is ended. Fails if it cannot be started, or if
/// a signal other than ours ends it.
Result<ToolEnd> run_tool(const std::vector<std::string>& command, const std::function<bool(std::string_view)>& take);

}  // namespace vmm::tool
