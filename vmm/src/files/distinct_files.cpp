#include "files/distinct_files.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace vmm {
namespace {

namespace fs = std::filesystem;

bool is_same(const std::string& one, const std::string& other) {
  std::error_code error;
  if (one.empty() || other.empty() || fs::is_character_file(one, error)) return false;
  if (fs::exists(one, error) && fs::exists(other, error)) return fs::equivalent(one, other, error);
  const auto path = fs::weakly_canonical(fs::absolute(one, error), error);
  return !error && path == fs::weakly_canonical(fs::absolute(other, error), error) && !error;
}

Result<void> check(const NamedFile& written, const NamedFile& other) {
  if (!is_same(written.path, other.path)) return {};
  return usage_error(
      fmt::format("{} would overwrite {}, the file of {}", written.option, printable(written.path), other.option),
      fmt::format("give another file with {}", written.option));
}

}  // namespace

Result<void> check_distinct(std::span<const NamedFile> read, std::span<const NamedFile> written) {
  for (std::size_t n = 0; n < written.size(); ++n) {
    for (const NamedFile& other : read) VMM_TRY(check(written[n], other));
    for (const NamedFile& other : written.first(n)) VMM_TRY(check(written[n], other));
  }
  return {};
}

}  // namespace vmm
