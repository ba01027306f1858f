#include "files/whole_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "files/output_file.hpp"

namespace vmm {
namespace {

constexpr unsigned max_names = 100;  // as mkstemp(3), tries until one is free

std::string directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path{path}.parent_path();
  return parent.empty() ? "." : parent;
}

unsigned random_number() {
  constexpr unsigned mask = 0xFFFFFF;
  unsigned number = 0;
  while (::getrandom(&number, sizeof number, 0) < 0 && errno == EINTR) continue;
  return number & mask;
}

}  // namespace

Result<WholeFile> WholeFile::create(const std::string& path, FileRole role) {
  struct stat old{};
  if (::lstat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode))
    return cannot("write", role, path, fmt::format("it is {}", kind_of_file(old.st_mode)));
  WholeFile file{path, std::move(role)};
  file.names_ = true;
  constexpr mode_t for_the_owner = 0600;
  if (::access("/proc/self/fd", X_OK) == 0)
    file.fd_ = Fd{::open(directory_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, for_the_owner)};
  if (!file.fd_.valid()) VMM_TRY(file.open_under_a_name());
  return file;
}

// Exclusive, for the owner only, and under a name of its own: what others have put there is neither followed nor
// written to.
Result<void> WholeFile::open_under_a_name() {
  std::string name = path_ + ".part-XXXXXX";
  fd_ = Fd{::mkostemp(name.data(), O_CLOEXEC)};
  if (!fd_.valid()) return cannot_write();
  unfinished_ = std::move(name);
  return {};
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
  if (fd_.valid() && names_ && !unfinished_.empty()) ::unlink(unfinished_.c_str());
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
  if (!names_) return {};
  VMM_TRY(name_it());
  fd_.reset();
  return sync_directory();
}

// A file without a name cannot replace another one: it gets a temporary name then.
Result<void> WholeFile::name_it() {
  for (unsigned n = 0; unfinished_.empty(); ++n) {
    const std::string name = n == 0 ? path_ : fmt::format("{}.part-{:06x}", path_, random_number());
    const std::string open_file = fmt::format("/proc/self/fd/{}", fd_.get());
    if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      if (n == 0) return {};
      unfinished_ = name;
    } else if (errno != EEXIST) {
      VMM_TRY(copy_under_a_name());
    } else if (n == max_names) {
      return cannot_write();
    }
  }
  if (std::rename(unfinished_.c_str(), path_.c_str()) != 0) return cannot_write();
  return {};
}

// Where a file without a name may not get one, as under an AppArmor profile without the permission `l`.
Result<void> WholeFile::copy_under_a_name() {
  struct stat own{};
  if (::fstat(fd_.get(), &own) != 0) return cannot_write();
  const Fd without_name = std::move(fd_);
  VMM_TRY(open_under_a_name());
  VMM_TRY(be_like(own));
  std::vector<std::byte> piece(std::size_t{1} << 20U);
  for (off_t at = 0; at < own.st_size;) {
    const ssize_t length = ::pread(without_name.get(), piece.data(), piece.size(), at);
    if (length < 0 && errno == EINTR) continue;
    if (length == 0) errno = EIO;  // somebody has cut it short
    if (length <= 0) return cannot_write();
    VMM_TRY(write(std::span{piece}.first(static_cast<std::size_t>(length))));
    at += length;
  }
  if (::fsync(fd_.get()) != 0) return cannot_write();
  return {};
}

// Without it a crash of the host could undo the new name. Skipped if the directory may be written but not read, or if
// its file system cannot do it.
Result<void> WholeFile::sync_directory() const {
  const Fd directory{::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
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
