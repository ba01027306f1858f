#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "files/role.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A file that is written completely or not at all: only finish() gives it its name, replacing an older file of that
/// name. Until then it has none, and is gone with the processes that have it open; or, where the file system has no
/// such files, one in the same directory that nobody can guess. Where it may not get a name, finish() copies it. Only
/// its owner can read it, unless be_like() changes that. Symbolic links are followed at neither name.
class WholeFile {
 public:
  /// Fails with kind usage where the directory cannot be written to, and where the name is taken by something that is
  /// no regular file.
  static Result<WholeFile> create(const std::string& path, FileRole role);
  /// The same file in a process that only writes it: `fd` is its descriptor(), or a pipe to the process that writes and
  /// finishes it. finish() leaves the name to that process. A write may wait for ever. Fails with kind usage if `fd` is
  /// neither.
  static Result<WholeFile> given(Fd fd, FileRole role);
  WholeFile(WholeFile&&) = default;
  WholeFile& operator=(WholeFile&&) = delete;
  /// Removes the file unless finish() has named it.
  ~WholeFile();

  /// Gives it the permissions of another file and, if that is allowed, its owner.
  Result<void> be_like(const struct stat& other);
  Result<void> write(std::span<const std::byte> bytes);
  /// Of the file, to send to a process that writes it. Until finish().
  [[nodiscard]] const Fd& descriptor() const { return fd_; }
  /// From here on another process, which has a copy of this object, finishes or removes the file; this one only writes.
  void hand_over() { names_ = false; }
  /// Waits until the file is on the disk, then gives it its name. Call it once.
  Result<void> finish();

 private:
  WholeFile(std::string path, FileRole role) : path_{std::move(path)}, role_{std::move(role)} {}
  Result<void> open_under_a_name();
  Result<void> name_it();
  Result<void> copy_under_a_name();
  /// By errno.
  [[nodiscard]] Failure cannot_write() const;
  Result<void> sync_directory() const;

  std::string path_;
  FileRole role_;
  std::string unfinished_;  ///< Its temporary name; empty if it has none yet.
  bool names_{};            ///< This process names the file, or removes it.
  Fd fd_;                   ///< Open until finish().
};

}  // namespace vmm
