#include "files/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>

#include "files/whole_file.hpp"

namespace vmm {
namespace {

constexpr mode_t new_file_mode = 0644;

/// Whether no second file can be made beside the file: the directory may not be changed, the file is a mount point, or
/// its name is as long as names can be.
bool takes_none_beside(int why) {
  return why == EACCES || why == EPERM || why == EROFS || why == EBUSY || why == EXDEV || why == ENAMETOOLONG;
}

}  // namespace

Result<Fd> open_to_write(const std::string& path, const FileRole& role, int flags) {
  Fd fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | flags, new_file_mode)};
  const int why = errno;
  struct stat status{};
  const bool there = fd.valid() ? ::fstat(fd.get(), &status) == 0 : ::stat(path.c_str(), &status) == 0;
  if (there && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode) && !S_ISDIR(status.st_mode))
    return cannot("write", role, path,
                  fmt::format("it is {}, neither a regular file nor a character device", kind_of_file(status.st_mode)));
  if (!fd.valid()) return cannot("write", role, path, errno_text(why));
  // From here on a write may block.
  if (const int now = ::fcntl(fd.get(), F_GETFL); now < 0 || ::fcntl(fd.get(), F_SETFL, now & ~O_NONBLOCK) != 0)
    return cannot("write", role, path, errno_text(errno));
  return fd;
}

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

Result<OutputFile> OutputFile::open(const std::string& path, FileRole role) {
  struct stat before{};
  const bool is_new = ::lstat(path.c_str(), &before) != 0;
  // Exclusive, so that only a file of our own is removed again.
  VMM_ASSIGN(Fd fd, open_to_write(path, role, is_new ? O_EXCL : 0));
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  if (error) return cannot("write", role, path, errno_text(error.value()));
  OutputFile file{real, std::move(role), std::move(fd)};
  file.is_new_ = is_new;
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_{std::move(other.path_)},
      role_{std::move(other.role_)},
      fd_{std::move(other.fd_)},
      is_new_{std::exchange(other.is_new_, false)} {}

OutputFile::~OutputFile() {
  if (is_new_) ::unlink(path_.c_str());
}

Result<Fd> OutputFile::descriptor() const {
  Fd another{::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)};
  if (!another.valid()) return cannot_write(errno);
  return another;
}

Result<void> OutputFile::begin() {
  struct stat status{};
  if (::fstat(fd_.get(), &status) != 0 || (S_ISREG(status.st_mode) && ::ftruncate(fd_.get(), 0) != 0))
    return cannot_write(errno);
  is_new_ = false;
  return {};
}

Result<void> OutputFile::replace(std::string_view contents) {
  struct stat old{};
  if (::fstat(fd_.get(), &old) != 0) return cannot_write(errno);
  if (!S_ISREG(old.st_mode)) return rewrite(contents);
  if (const auto done = succeed(old, contents); !done) {
    const int why = done.error().system_errno;
    return takes_none_beside(why) ? rewrite(contents) : cannot_write(why);
  }
  is_new_ = false;
  return {};
}

Result<void> OutputFile::succeed(const struct stat& old, std::string_view contents) const {
  VMM_ASSIGN(auto next, WholeFile::create(path_, role_));
  VMM_TRY(next.be_like(old));
  VMM_TRY(next.write(std::as_bytes(std::span{contents})));
  return next.finish();
}

Result<void> OutputFile::rewrite(std::string_view contents) {
  VMM_TRY(begin());
  if (const int why = write_all(fd_.get(), contents); why != 0) return cannot_write(why);
  // EINVAL: it is no regular file, and there is no disk to wait for.
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) return cannot_write(errno);
  return {};
}

// Of kind host, because the path was good when the file was opened.
Failure OutputFile::cannot_write(int why) const {
  return host_error(fmt::format("cannot write {} {}", role_.what, printable(path_)), why, role_.advice);
}

}  // namespace vmm
