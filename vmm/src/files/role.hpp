#pragma once
#include <sys/types.h>

#include <string>

#include "support/result.hpp"

namespace vmm {

/// What a file is for, as messages name it.
struct FileRole {
  std::string what;    ///< "the kernel"
  std::string advice;  ///< What to give instead: "give a readable file with --kernel".
};

/// Of stat::st_mode: "a named pipe", "a directory" and so on.
const char* kind_of_file(mode_t mode);

/// "cannot read the kernel /boot/x: why; give ...", of kind usage. `verb` is "read" or "write"; `why` is empty where an
/// errno will say it.
Failure cannot(const char* verb, const FileRole& role, const std::string& path, const std::string& why);

}  // namespace vmm
