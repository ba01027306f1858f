#include "files/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace vmm {
namespace {

std::string shortened_to(std::uint64_t bytes) {
  return fmt::format("it was shortened to {} bytes while it was read", bytes);
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path, FileRole role) {
  Fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat status{};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) return cannot("read", role, path, errno_text(errno));
  if (!S_ISREG(status.st_mode))
    return cannot("read", role, path, fmt::format("it is {}, not a regular file", kind_of_file(status.st_mode)));
  if (status.st_size == 0) return cannot("read", role, path, "it is empty");
  return InputFile{path, std::move(role), std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

Result<void> InputFile::has_at_most(std::uint64_t bytes) const {
  if (size_ <= bytes) return {};
  return refuse(fmt::format("it has {} bytes, and at most {} are allowed", size_, bytes));
}

Result<std::size_t> InputFile::read(std::span<std::byte> room) {
  std::size_t done = 0;
  while (done < room.size()) {
    const auto got = ::read(fd_.get(), room.data() + done, room.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(errno_text(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<void> InputFile::read_in_pieces(const std::function<void(std::span<const std::byte>)>& take) {
  constexpr std::uint64_t max_piece = 256U << 10U;
  std::vector<std::byte> piece(std::min(max_piece, size_));
  for (std::uint64_t done = 0; done < size_; done += piece.size()) {
    piece.resize(std::min(max_piece, size_ - done));
    VMM_ASSIGN(const std::size_t got, read(piece));
    if (got < piece.size()) return refuse(shortened_to(done + got));
    take(piece);
  }
  return {};
}

Result<std::vector<std::byte>> read_whole_file(const std::string& path, FileRole role, std::uint64_t max) {
  VMM_ASSIGN(auto file, InputFile::open(path, std::move(role)));
  VMM_TRY(file.has_at_most(max));
  std::vector<std::byte> bytes(file.size());
  VMM_ASSIGN(const std::size_t got, file.read(bytes));
  if (got < bytes.size()) return file.refuse(shortened_to(got));
  return bytes;
}

}  // namespace vmm
