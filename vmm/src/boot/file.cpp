#include "boot/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

namespace vmm {

Result<InputFile> InputFile::open(const std::string& path, const std::string& what) {
  const auto advice = fmt::format("give a readable file with --{}", what);
  const auto failure = [&](const std::string& reason) {
    return usage_error(fmt::format("cannot read the {} {}: {}", what, printable(path), reason), advice);
  };
  // O_NONBLOCK: a named pipe must not hold us up.
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    return failure(errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return failure("not a regular file");
  }
  if (status.st_size == 0) {
    return failure("it is empty");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > most_bytes) {
    return failure(fmt::format("{} bytes are more than {} GiB", size, most_bytes >> 30U));
  }
  // Read and not mapped: a mapped file that is cut short ends the process.
  void* const base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return failure(errno_text(errno));
  }
  InputFile input;
  input.mapping_ = Mapping{base, size};
  for (std::size_t at = 0; at < size;) {
    const ssize_t got = ::read(file.get(), static_cast<std::byte*>(base) + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(errno_text(errno));
    if (got == 0) return failure("it becomes shorter while it is read");
    at += static_cast<std::size_t>(got);
  }
  return input;
}

}  // namespace vmm
