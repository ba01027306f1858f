#pragma once
#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>

#include "files/role.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A file to write, opened long before, so that a bad path is known at once. What it holds stays until begin() or
/// replace(): who fails before that has destroyed nothing, and leaves no new file behind.
class OutputFile {
 public:
  /// A regular file, made where there is none, or a character device. Never waits for who reads a named pipe. Fails
  /// with kind usage.
  static Result<OutputFile> open(const std::string& path, FileRole role);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Another descriptor of it, for who writes while things go on. Before begin() nothing may be written.
  [[nodiscard]] Result<Fd> descriptor() const;
  [[nodiscard]] int number() const { return fd_.get(); }
  /// Another process goes on with a copy of this: here nothing is removed any more.
  void hand_over() { is_new_ = false; }
  /// Empties it, and keeps it.
  Result<void> begin();
  /// Gives it new contents, all of them or, where that fails, the old ones: a new file takes its name when it is on the
  /// disk. A device, and a file in a directory that may not be written to, is written to as it is.
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
  bool is_new_{false};  ///< Nobody else has put it there, and it holds nothing yet.
};

/// Opens for writing as OutputFile does; `flags` go to open() as well (O_APPEND, O_EXCL).
Result<Fd> open_to_write(const std::string& path, const FileRole& role, int flags);

/// 0, or errno of what stopped it from writing all of it.
int write_all(int fd, std::string_view text);

}  // namespace vmm
