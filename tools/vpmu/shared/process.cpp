#include "shared/process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

namespace vmm::tool {
namespace {

std::atomic<int> failure_code{1};

/// Without memory: only write(). The broker and the daemons see the end of this process, and clean up.
[[noreturn]] void end_with(std::string_view line) {
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(failure_code);
}

[[noreturn]] void no_memory() {
  end_with("vpmu: no memory left: the host has none, or `ulimit -v` is too low for this guest\n");
}

/// What no caller has caught: std::thread fails like this. Anything else is a bug of ours, which is worth a core file.
[[noreturn]] void uncaught() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::bad_alloc&) {
    no_memory();
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "vpmu: the host refuses a thread or a lock: %s; see `ulimit -a`\n", error.what());
    ::_exit(failure_code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vpmu: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "vpmu: internal error\n");
  }
  std::abort();
}

}  // namespace

int prepare_process() {
  // Open for reading only, /dev/null refuses to be written to.
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != number) {
      std::fprintf(stderr, "vpmu: a standard stream is closed, and cannot be opened as /dev/null\n");
      return failure_code;
    }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_new_handler(no_memory);
  std::set_terminate(uncaught);
  return 0;
}

void set_failure_code(int code) { failure_code = code; }

}  // namespace vmm::tool
