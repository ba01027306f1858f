#include "files/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

namespace vmm {

Result<InputFile> InputFile::open(const std::string& path, FileRole role) {
  Fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat status{};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) return cannot("read", role, path, errno_text(errno));
  if (!S_ISREG(status.st_mode))
    return cannot("read", role, path, fmt::format("it is {}, not a regular file", kind_of_file(status.st_mode)));
  if (status.st_size == 0) return cannot("read", role, path, "it is empty");
  return InputFile{path, std::move(role), std::move(fd), static_cast<std::uint64_t>(status.st_size)};
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
  std::vector<std::byte> piece(std::size_t{256} << 10U);
  for (;;) {
    VMM_ASSIGN(const std::size_t got, read(piece));
    take(std::span{piece}.first(got));
    if (got < piece.size()) return {};
  }
}

Result<std::vector<std::byte>> read_whole_file(const std::string& path, FileRole role, std::uint64_t max) {
  VMM_ASSIGN(auto file, InputFile::open(path, std::move(role)));
  if (file.size() > max)
    return file.refuse(fmt::format("it has {} bytes, and at most {} are allowed", file.size(), max));
  std::vector<std::byte> bytes(file.size());
  VMM_ASSIGN(const std::size_t got, file.read(bytes));
  if (got < bytes.size()) return file.refuse(fmt::format("it was shortened to {} bytes while it was read", got));
  return bytes;
}

}  // namespace vmm
