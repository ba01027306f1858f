#include "files/role.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

namespace vmm {

const char* kind_of_file(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFIFO: return "a named pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

Failure cannot(const char* verb, const FileRole& role, const std::string& path, const std::string& why) {
  return usage_error(fmt::format("cannot {} {} {}{}{}", verb, role.what, printable(path), why.empty() ? "" : ": ", why),
                     role.advice);
}

}  // namespace vmm
