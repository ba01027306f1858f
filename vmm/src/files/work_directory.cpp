#include "files/work_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace vmm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view unique = "XXXXXX";

struct Hold {
  Fd lock;        ///< Valid if the directory is this user's and no other process holds it.
  bool locked{};  ///< False where the file system has no locks: then nobody knows who uses it.
};

Hold hold(const std::string& path) {
  Hold held{.lock = Fd{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)}};
  struct stat opened{}, named{};
  if (!held.lock.valid() || ::fstat(held.lock.get(), &opened) != 0 || opened.st_uid != ::geteuid()) return {};
  held.locked = ::flock(held.lock.get(), LOCK_EX | LOCK_NB) == 0;
  if (!held.locked && errno == EWOULDBLOCK) return {};
  // Whoever held it before may have removed it meanwhile.
  const bool is_there =
      ::lstat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
  return is_there ? std::move(held) : Hold{};
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);  // does not follow links
}

/// Removes what killed processes have left. What cannot be read or removed stays.
void sweep(const fs::path& place) {
  std::error_code error;
  for (fs::directory_iterator entry{place, fs::directory_options::skip_permission_denied, error}, end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(WorkDirectory::prefix) ||
        name.size() != std::string_view{WorkDirectory::prefix}.size() + unique.size())
      continue;
    if (const Hold held = hold(entry->path()); held.lock.valid() && held.locked) remove_tree(entry->path());
  }
}

}  // namespace

Result<WorkDirectory> WorkDirectory::create(const std::string& parent) {
  constexpr int max_tries = 100;
  std::error_code error;
  const fs::path place = parent.empty() ? fs::temp_directory_path(error) : fs::path{parent};
  const auto failed = [&](int why) {
    return host_error("a work directory in " + printable(place.string()), why,
                      parent.empty() ? "set TMPDIR" : "give one that can be written to");
  };
  if (error) return failed(error.value());
  sweep(place);
  // Another process may sweep a new directory away before it is locked.
  for (int i = 0; i < max_tries; ++i) {
    std::string path = place / (std::string{prefix} + std::string{unique});
    if (::mkdtemp(path.data()) == nullptr) return failed(errno);
    if (Hold held = hold(path); held.lock.valid()) return WorkDirectory{std::move(path), std::move(held.lock)};
  }
  return failed(EBUSY);
}

WorkDirectory::~WorkDirectory() {
  if (!path_.empty()) remove_tree(path_);
}

}  // namespace vmm
