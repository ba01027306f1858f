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

/// A file that is written whole or not at all: it takes its name, and the place of an older file of that name, only by
/// finish(). Until then it lies beside it under a name that nobody can guess. Its owner alone can read it, unless it is
/// to be like another file. Symbolic links are not followed, neither at the name nor beside it.
class WholeFile {
 public:
  /// Fails with kind usage where the directory cannot be written to, and where the name is taken by something that is
  /// no regular file.
  static Result<WholeFile> create(const std::string& path, FileRole role);
  /// The same file on the side of who only writes it: `fd` is its descriptor(), sent here by the process that finishes
  /// it. finish() leaves the name to that one. Fails with kind usage where it is no regular file: others could hold the
  /// writer up.
  static Result<WholeFile> given(Fd fd, FileRole role);
  WholeFile(WholeFile&&) = default;
  WholeFile& operator=(WholeFile&&) = delete;
  /// Without finish() nothing is left.
  ~WholeFile();

  /// Gives it the rights of another file and, where that may be done, its owner.
  Result<void> be_like(const struct stat& other);
  Result<void> write(std::span<const std::byte> bytes);
  /// Of the file, to send to a process that writes it. Until finish().
  [[nodiscard]] const Fd& descriptor() const { return fd_; }
  /// From here on another process, which has the same object, finishes it or takes it away: this one only writes.
  void hand_over() { unfinished_.clear(); }
  /// Gives the file its name once all of it is on the disk. Once.
  Result<void> finish();

 private:
  WholeFile(std::string path, FileRole role) : path_{std::move(path)}, role_{std::move(role)} {}
  /// By errno.
  [[nodiscard]] Failure cannot_write() const;
  Result<void> sync_directory() const;

  std::string path_;
  FileRole role_;
  std::string unfinished_;  ///< Its name meanwhile; empty: somebody else's.
  Fd fd_;                   ///< Open until finish().
};

}  // namespace vmm
