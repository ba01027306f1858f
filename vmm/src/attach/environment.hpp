#pragma once
#include <optional>
#include <string>
#include <vector>

#include "attach/attached_vm.hpp"
#include "support/log.hpp"

namespace vmm {

/// What the environment of a VMM asks the library for.
struct AttachEnvironment {
  AttachOptions options;
  std::string log;         ///< VPMU_LOG: a file for all messages; without it warnings go to standard error.
  std::string statistics;  ///< VPMU_STATS: a file for all counters, when the process ends.
};

/// Empty without VPMU_MODEL: then the library does nothing. Fails with kind usage on a model or source that does not
/// exist.
Result<std::optional<AttachEnvironment>> read_environment();

/// The names of variables that begin with VPMU_ but are not the library's: a misspelt one would have no effect.
std::vector<std::string> unknown_variables();

/// The log that `environment` asks for.
Log make_log(const AttachEnvironment& environment);

}  // namespace vmm
