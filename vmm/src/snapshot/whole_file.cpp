#include "snapshot/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

namespace vmm {
namespace {

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFIFO: return "a named pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

}  // namespace

WholeFile::WholeFile(std::string path, std::string what, std::string advice) : path_{std::move(path)}, what_{std::move(what)}, advice_{std::move(advice)} {}

Result<WholeFile> WholeFile::create(const std::string& path, const std::string& what, const std::string& advice) {
  struct stat old {};
  if (::lstat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode))
    return usage_error(fmt::format("cannot write {} {}: it is {}", what, printable(path), kind_of(old.st_mode)), advice);
  WholeFile file{path, what, advice};
  // Exclusive, for the owner only, and under a name of its own: what others have put there is neither followed nor written to.
  std::string name = path + ".part-XXXXXX";
  file.fd_ = Fd{::mkostemp(name.data(), O_CLOEXEC)};
  if (!file.fd_.valid()) return file.cannot_write();
  file.unfinished_ = std::move(name);
  return file;
}

WholeFile::~WholeFile() {
  if (fd_.valid()) ::unlink(unfinished_.c_str());
}

Result<void> WholeFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return cannot_write();
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> WholeFile::finish() {
  if (::fsync(fd_.get()) != 0 || std::rename(unfinished_.c_str(), path_.c_str()) != 0) return cannot_write();
  fd_.reset();
  return sync_directory();
}

// Until then a crash of the host could take the new name back. Not where the directory may be written to and not read, nor where its file system
// has no such thing.
Result<void> WholeFile::sync_directory() const {
  const std::string parent = std::filesystem::path{path_}.parent_path();
  const Fd directory{::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!directory.valid() || ::fsync(directory.get()) == 0 || errno == EINVAL) return {};
  return cannot_write();
}

Failure WholeFile::cannot_write() const {
  return usage_error(fmt::format("cannot write {} {}: {}", what_, printable(path_), errno_text(errno)), advice_);
}

}  // namespace vmm
