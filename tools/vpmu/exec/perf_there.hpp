#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

/// Fails with kind host if a guest with the root `root` would find no perf. Checks this machine's own root only: the
/// perf of another root is not looked for.
Result<void> check_for_perf(const std::string& root);

}  // namespace vmm::tool
