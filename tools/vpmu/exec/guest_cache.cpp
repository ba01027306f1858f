#include "exec/guest_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "machine/config.hpp"

namespace vmm::tool {
namespace {

constexpr const char* advice = "give one of your own with XDG_CACHE_HOME, or --no-cache";
constexpr mode_t for_owner_only = 0700;
constexpr mode_t others_may_write = S_IWGRP | S_IWOTH;
constexpr mode_t others_may_do = S_IRWXG | S_IRWXO;
/// What WholeFile adds to the name of a file that is not finished, where the file system has no files without names.
constexpr std::string_view unfinished = ".part-";
/// A file that is not finished has been left behind after this time.
constexpr std::time_t longest_writing = 3600;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// By the XDG Base Directory Specification: a path that is not absolute is ignored.
Result<std::string> cache_home() {
  if (std::string given = variable("XDG_CACHE_HOME"); given.starts_with('/')) return given;
  if (const std::string home = variable("HOME"); home.starts_with('/')) return home + "/.cache";
  return host_error("there is no directory for booted guests: HOME is not set", 0, advice);
}

/// Opens a directory, which is made if it is missing.
Result<Fd> open_directory(int above, const char* name, const std::string& path) {
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  Fd directory{::openat(above, name, flags)};
  if (!directory.valid() && errno == ENOENT) {
    ::mkdirat(above, name, for_owner_only);  // or another process has, just now
    directory = Fd{::openat(above, name, flags)};
  }
  struct stat is{};
  if (!directory.valid() || ::fstat(directory.get(), &is) != 0)
    return host_error("the directory for booted guests, " + printable(path), errno, advice);
  if (is.st_uid != ::geteuid() || (is.st_mode & others_may_write) != 0)
    return host_error("another user could write to the directory for booted guests, " + printable(path), 0, advice);
  return directory;
}

}  // namespace

Result<GuestCache> GuestCache::open() {
  const std::string size = variable("VPMU_GUEST_CACHE_SIZE");
  constexpr std::uint64_t default_bytes = 4ULL << 30U;
  std::uint64_t max_bytes = default_bytes;
  if (!size.empty()) {
    VMM_ASSIGN(max_bytes, parse_size(size));
  }
  VMM_ASSIGN(const std::string home, cache_home());
  // The directory above may be missing, too, in a new home directory.
  VMM_ASSIGN(const Fd above, open_directory(AT_FDCWD, home.c_str(), home));
  VMM_ASSIGN(const Fd ours, open_directory(above.get(), "vpmu", home + "/vpmu"));
  std::string path = home + "/vpmu/guests";
  VMM_ASSIGN(Fd directory, open_directory(ours.get(), "guests", path));
  return GuestCache{std::move(path), std::move(directory), max_bytes};
}

std::optional<Fd> GuestCache::find(const std::string& name) const {
  Fd file{::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  struct stat is{};
  if (!file.valid() || ::fstat(file.get(), &is) != 0) return std::nullopt;
  if (!S_ISREG(is.st_mode) || is.st_uid != ::geteuid() || (is.st_mode & others_may_do) != 0) return std::nullopt;
  ::futimens(file.get(), nullptr);  // on a read-only file system nobody shrinks the cache either
  return file;
}

Result<WholeFile> GuestCache::add(const std::string& name) const {
  shrink();
  return WholeFile::create(path_ + "/" + name, {.what = "the booted guest", .advice = advice});
}

Result<void> GuestCache::remove(const std::string& name) const {
  if (::unlinkat(directory_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return host_error(fmt::format("{}/{} cannot be removed", printable(path_), printable(name)), errno,
                    "remove it by hand, or make the file system writable");
}

std::vector<GuestCache::Entry> GuestCache::list() const {
  std::vector<Entry> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(path_.c_str()), ::closedir};
  while (const dirent* const entry = directory ? ::readdir(directory.get()) : nullptr) {
    struct stat is{};
    if (::fstatat(directory_.get(), entry->d_name, &is, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(is.st_mode))
      all.push_back(
          {.name = entry->d_name, .bytes = static_cast<std::uint64_t>(is.st_size), .used = is.st_mtim.tv_sec});
  }
  std::ranges::sort(all, [](const Entry& a, const Entry& b) { return a.used > b.used; });
  return all;
}

void GuestCache::shrink() const {
  std::uint64_t bytes = 0;
  const std::time_t now = std::time(nullptr);
  for (const Entry& entry : list()) {
    const bool is_unfinished = entry.name.find(unfinished) != std::string::npos;
    if (!is_unfinished) bytes += entry.bytes;
    if (is_unfinished ? now - entry.used > longest_writing : bytes > max_bytes_)
      static_cast<void>(remove(entry.name));  // then it is larger than it should be
  }
}

}  // namespace vmm::tool
