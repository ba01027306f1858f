#include "output.hpp"

#include <cerrno>
#include <cstdio>

namespace vmm::tool {
namespace {

Result<void> print(const Result<std::string>& text) {
  if (!text) return tl::unexpected(text.error());
  errno = 0;
  if (std::fwrite(text->data(), 1, text->size(), stdout) != text->size() || std::fflush(stdout) != 0)
    return host_error("cannot write to standard output", errno);
  return {};
}

}  // namespace

int print_or_explain(const char* command, const Result<std::string>& text) {
  const Result<void> printed = print(text);
  if (printed) return 0;
  std::fprintf(stderr, "%s: %s\n", command, describe(printed.error()).c_str());
  return printed.error().kind == ErrorKind::usage ? 2 : 1;
}

}  // namespace vmm::tool
