#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "files/role.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A regular file that is read from its start. It is never mapped: if somebody shortens it meanwhile, it ends early,
/// and there is no SIGBUS.
class InputFile {
 public:
  /// Never waits for a named pipe or a device. Fails with kind usage where the file cannot be opened, is no regular
  /// file or is empty.
  static Result<InputFile> open(const std::string& path, FileRole role);

  /// In bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Fails with kind usage if it is longer.
  [[nodiscard]] Result<void> has_at_most(std::uint64_t bytes) const;
  /// The next bytes: as many as there is room for, fewer only at its end. Fails with kind usage.
  Result<std::size_t> read(std::span<std::byte> room);
  /// All of it, in pieces of 256 KiB, which stay in the host's cache. To be called before anything was read. Fails with
  /// kind usage, also on a file that is shortened while it is read; what it grows by is left out.
  Result<void> read_in_pieces(const std::function<void(std::span<const std::byte>)>& take);
  /// A failure that names the file.
  [[nodiscard]] Failure refuse(const std::string& why) const { return cannot("read", role_, path_, why); }

 private:
  InputFile(std::string path, FileRole role, Fd fd, std::uint64_t size)
      : path_{std::move(path)}, role_{std::move(role)}, fd_{std::move(fd)}, size_{size} {}

  std::string path_;
  FileRole role_;
  Fd fd_;
  std::uint64_t size_;
};

/// All of a file. Fails with kind usage as InputFile does, on one of more than `most` bytes, and on one that is
/// shortened while it is read.
Result<std::vector<std::byte>> read_whole_file(const std::string& path, FileRole role, std::uint64_t max);

}  // namespace vmm
