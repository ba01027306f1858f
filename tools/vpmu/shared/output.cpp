#include "shared/output.hpp"

#include <stdio_ext.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace vmm::tool {

namespace {

/// errno of the first write to standard output that failed.
int print_error = 0;

}  // namespace

bool print(std::string_view text) {
  const bool done = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!done && print_error == 0) print_error = errno;
  return done && print_error == 0;
}

Result<void> write_out(std::string_view text) {
  if (print(text) && std::fflush(stdout) == 0) return {};
  const int why = print_error != 0 ? std::exchange(print_error, 0) : errno;
  ::__fpurge(stdout);  // finish_output() shall not tell of it again
  return host_error("cannot write all of it to standard output", why);
}

Result<void> write_error(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stderr) == text.size()) return {};
  return host_error("cannot write all of it to standard error", errno);
}

int explain(const char* command, const Result<void>& done) {
  if (done) return 0;
  std::fprintf(stderr, "%s: %s\n", command, describe(done.error()).c_str());
  return done.error().kind == ErrorKind::usage ? 2 : 1;
}

int print_or_explain(const char* command, const Result<std::string>& text) {
  if (text) print(*text);
  return explain(command, text ? Result<void>{} : Failure{text.error()});
}

std::vector<ExitCode> exit_codes_of_printing() {
  return {{.code = "0", .meaning = "done"},
          {.code = "1", .meaning = "the host failed, or standard output could not be written"},
          {.code = "2", .meaning = "wrong use"}};
}

int finish_output(int exit_code) {
  if (std::fflush(stdout) != 0 && print_error == 0) print_error = errno;
  if (print_error == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "vpmu: cannot write all of it to standard output%s\n",
               print_error == 0 ? "" : (": " + errno_text(print_error)).c_str());
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace vmm::tool
