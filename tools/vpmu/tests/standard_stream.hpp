#pragma once
#include <unistd.h>

namespace vmm::tool::test {

/// In a child, which ends where `file` is none.
inline void become_stream(int file, int stream) {
  if (file < 0 || ::dup2(file, stream) < 0) ::_exit(127);
}

}  // namespace vmm::tool::test
