#include "exec/kernel.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "boot/linux_image.hpp"
#include "files/input_file.hpp"
#include "snapshot/checksum.hpp"

namespace vmm::tool {
namespace {

// Linux Documentation/arch/x86/boot.rst
constexpr std::size_t version_pointer = 0x20E;
constexpr std::size_t version_base = 0x200;
constexpr std::size_t max_version_length = 64;  // the size of the field in uname(2)

bool readable(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

}  // namespace

std::filesystem::path fetched_files(const std::filesystem::path& program) {
  const std::filesystem::path directory = program.parent_path();  // BUILD/PRESET/tools/vpmu
  const std::filesystem::path build = directory.parent_path().parent_path().parent_path();
  if (build.filename() == "build" && directory.parent_path().filename() == "tools") return build / "cache";
  return "/var/cache/vpmu";
}

std::string fetched_file(std::string_view path) {
  if (const char* const cache = std::getenv("VPMU_CACHE"); cache != nullptr && *cache != '\0')
    return fmt::format("{}/{}", cache, path);
  std::error_code error;
  return fetched_files(std::filesystem::read_symlink("/proc/self/exe", error)) / path;
}

KernelPlaces kernel_places(const std::string& given) {
  utsname names{};
  ::uname(&names);
  return {.given = given,
          .running = fmt::format("/boot/vmlinuz-{}", names.release),
          .fetched = fetched_file("l2/boot/vmlinuz")};
}

Result<std::string> find_kernel(const KernelPlaces& places) {
  if (!places.given.empty()) return places.given;
  for (const std::string& place : {places.running, places.fetched})
    if (readable(place)) return place;
  return usage_error(fmt::format("no kernel for the guest: --kernel is not given, and neither {} nor {} can be read",
                                 printable(places.running), printable(places.fetched)),
                     "give a bzImage with --kernel, make this host's readable, or run tools/dev/bed/fetch guest");
}

Result<std::string> kernel_version(std::span<const std::byte> file) {
  std::uint16_t pointer = 0;
  if (is_linux_image(file) && file.size() >= version_pointer + sizeof pointer)
    std::memcpy(&pointer, &file[version_pointer], sizeof pointer);
  const std::size_t place = version_base + pointer;
  if (pointer == 0 || place >= file.size()) return usage_error("the kernel's header names no version");
  std::string text(std::min(max_version_length + 1, file.size() - place), '\0');
  std::memcpy(text.data(), &file[place], text.size());
  std::string version = text.substr(0, text.find_first_of(std::string_view{" \0", 2}));
  constexpr auto is_plain = [](char c) { return c > ' ' && c < 0x7F && c != '/'; };
  if (version.empty() || version.size() > max_version_length || version.starts_with('.') ||
      !std::ranges::all_of(version, is_plain))
    return usage_error(fmt::format("the kernel's header has '{}' where its version should be", printable(version)));
  return version;
}

Result<KernelFile> look_at_kernel(const std::string& path) {
  VMM_ASSIGN(auto file, InputFile::open(path, {.what = "the kernel", .advice = "give a readable bzImage"}));
  constexpr std::uint64_t max_bytes = 1ULL << 30U;
  VMM_TRY(file.has_at_most(max_bytes));
  std::optional<Result<std::string>> version;  // its place is at the beginning
  Checksum checksum;
  VMM_TRY(file.read_in_pieces([&](std::span<const std::byte> piece) {
    if (!version) version = kernel_version(piece);
    checksum.add(piece);
  }));
  if (!*version) return Failure{version->error()};
  return KernelFile{.version = **version, .checksum = checksum.value()};
}

}  // namespace vmm::tool
