#pragma once
#include <unistd.h>

namespace vmm::tool::test {

/// For a child process: makes `file` its standard stream; ends the child if that fails.
inline void become_stream(int file, int stream) {
  if (file < 0 || ::dup2(file, stream) < 0) ::_exit(127);
}

}  // namespace vmm::tool::test
