#pragma once
#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>

#include "files/role.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A file to write, opened early, so that a bad path is known at once. Its old contents stay until begin() or
/// replace(): a failure before that destroys nothing, and leaves no new file behind.
class OutputFile {
 public:
  /// Opens a regular file, which is made if it is missing, or a character device. Never waits for a named pipe's
  /// reader. Fails with kind usage.
  static Result<OutputFile> open(const std::string& path, FileRole role);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Another descriptor of the file, for output during a run. Nothing may be written before begin().
  [[nodiscard]] Result<Fd> descriptor() const;
  [[nodiscard]] int number() const { return fd_.get(); }
  /// Another process goes on with a copy of this object: this one no longer removes the file.
  void hand_over() { is_new_ = false; }
  /// Empties the file. From now on the destructor does not remove it.
  Result<void> begin();
  /// Replaces the contents completely or, on failure, not at all: a new file takes the name once it is on the disk. A
  /// device is written in place, and so is a file in a directory that may not be written to.
  Result<void> replace(std::string_view contents);

 private:
  OutputFile(std::string path, FileRole role, Fd fd)
      : path_{std::move(path)}, role_{std::move(role)}, fd_{std::move(fd)} {}
  Result<void> succeed(const struct stat& old, std::string_view contents) const;
  Result<void> rewrite(std::string_view contents);
  [[nodiscard]] Failure cannot_write(int why) const;

  std::string path_;  ///< Without symbolic links.
  FileRole role_;
  Fd fd_;
  bool is_new_{false};  ///< This object has made the file, and it is still empty.
};

/// Opens for writing as OutputFile does; `flags` go to open() as well (O_APPEND, O_EXCL).
Result<Fd> open_to_write(const std::string& path, const FileRole& role, int flags);

/// Writes all of `text`. Returns 0, or the errno of the write that failed.
int write_all(int fd, std::string_view text);

}  // namespace vmm
