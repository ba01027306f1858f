#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

/// Fails with kind host where a guest, whose root is `root`, would find no perf. Of another root than this machine's it
/// knows nothing.
Result<void> check_for_perf(const std::string& root);

}  // namespace vmm::tool
