#include "exec/guest_date.hpp"

#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <optional>

namespace vmm::tool {
namespace {

std::optional<struct stat> look_at(const std::string& path) {
  struct stat found{};
  return ::lstat(path.c_str(), &found) == 0 ? std::optional{found} : std::nullopt;
}

}  // namespace

std::int64_t guest_date(std::int64_t least, std::span<const std::string> directories) {
  namespace fs = std::filesystem;
  constexpr unsigned most = 10'000;
  constexpr std::int64_t day = 86'400;
  const std::int64_t future = std::time(nullptr) + day;
  std::int64_t date = least;
  unsigned looked_at = 0;
  for (const std::string& directory : directories) {
    const auto top = look_at(directory);
    std::error_code error;
    fs::recursive_directory_iterator entries{directory, fs::directory_options::skip_permission_denied, error};
    for (; top && !error && entries != fs::recursive_directory_iterator{} && looked_at < most;
         entries.increment(error)) {
      ++looked_at;
      const auto found = look_at(entries->path().string());
      if (!found) continue;
      // Files of the kernel are always new.
      const bool is_elsewhere = found->st_dev != top->st_dev;
      if (is_elsewhere) entries.disable_recursion_pending();
      const std::int64_t changed = found->st_mtim.tv_sec;
      if (!is_elsewhere && changed >= date && changed < future) date = (changed / day + 1) * day;
    }
  }
  return date;
}

}  // namespace vmm::tool
