#pragma once
#include <span>
#include <string>

#include "support/result.hpp"

namespace vmm {

/// A file that was named on the command line; one without a path was not.
struct NamedFile {
  std::string option;  ///< "--kernel"
  std::string path;
};

/// Fails with kind usage when a file that is to be written is also read, or written twice, under whatever name. Devices
/// may be shared.
Result<void> check_distinct(std::span<const NamedFile> read, std::span<const NamedFile> written);

}  // namespace vmm
