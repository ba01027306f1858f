#include "files/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "files/output_file.hpp"

namespace vmm {

Result<WholeFile> WholeFile::create(const std::string& path, FileRole role) {
  struct stat old{};
  if (::lstat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode))
    return cannot("write", role, path, fmt::format("it is {}", kind_of_file(old.st_mode)));
  WholeFile file{path, std::move(role)};
  // Exclusive, for the owner only, and under a name of its own: what others have put there is neither followed nor
  // written to.
  std::string name = path + ".part-XXXXXX";
  file.fd_ = Fd{::mkostemp(name.data(), O_CLOEXEC)};
  if (!file.fd_.valid()) return file.cannot_write();
  file.unfinished_ = std::move(name);
  return file;
}

Result<WholeFile> WholeFile::given(Fd fd, FileRole role) {
  WholeFile file{"that was sent", std::move(role)};
  struct stat is{};
  if (::fstat(fd.get(), &is) != 0) return file.cannot_write();
  if (!S_ISREG(is.st_mode) && !S_ISFIFO(is.st_mode))
    return cannot("write", file.role_, file.path_, fmt::format("it is {}", kind_of_file(is.st_mode)));
  file.fd_ = std::move(fd);
  return file;
}

WholeFile::~WholeFile() {
  if (fd_.valid() && !unfinished_.empty()) ::unlink(unfinished_.c_str());
}

Result<void> WholeFile::be_like(const struct stat& other) {
  // Only root may change the owner; for other users the file is their own anyway.
  if (::fchown(fd_.get(), other.st_uid, other.st_gid) != 0 && errno != EPERM) return cannot_write();
  if (::fchmod(fd_.get(), other.st_mode & ALLPERMS) != 0) return cannot_write();
  return {};
}

Result<void> WholeFile::write(std::span<const std::byte> bytes) {
  errno = write_all(fd_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (errno != 0) return cannot_write();
  return {};
}

Result<void> WholeFile::finish() {
  // EINVAL: a pipe.
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) return cannot_write();
  if (unfinished_.empty()) return {};
  if (std::rename(unfinished_.c_str(), path_.c_str()) != 0) return cannot_write();
  fd_.reset();
  return sync_directory();
}

// Without it a crash of the host could undo the new name. Skipped if the directory may be written but not read, or if
// its file system cannot do it.
Result<void> WholeFile::sync_directory() const {
  const std::string parent = std::filesystem::path{path_}.parent_path();
  const Fd directory{::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!directory.valid() || ::fsync(directory.get()) == 0 || errno == EINVAL) return {};
  return cannot_write();
}

Failure WholeFile::cannot_write() const {
  const int why = errno;
  Failure failure = cannot("write", role_, path_, {});
  failure.value().system_errno = why;
  return failure;
}

}  // namespace vmm
