#pragma once
#include <span>
#include <string>

#include "support/result.hpp"

namespace vmm {

/// A file option of the command line; the path is empty if the option was not given.
struct NamedFile {
  std::string option;  ///< "--kernel"
  std::string path;
};

/// Fails with kind usage when a file that is to be written is also read, or written twice, under whatever name. Devices
/// may be shared.
Result<void> check_distinct(std::span<const NamedFile> read, std::span<const NamedFile> written);

}  // namespace vmm
