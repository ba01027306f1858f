#include "shared/output.hpp"

#include <cerrno>
#include <cstdio>

namespace vmm::tool {

bool print(std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  return std::ferror(stdout) == 0;
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
  const bool failed_before = std::ferror(stdout) != 0;
  const bool lost = std::fflush(stdout) != 0 || failed_before;
  if (!lost) return exit_code;
  // errno is known only if the last call failed.
  std::fprintf(stderr, "vpmu: cannot write all of it to standard output%s\n",
               failed_before ? "" : (": " + errno_text(errno)).c_str());
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace vmm::tool
