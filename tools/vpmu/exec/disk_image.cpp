#include "exec/disk_image.hpp"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace vmm::tool {
namespace {

constexpr const char* form = "give IMAGE[,ro][,format=raw|qcow2]";

struct Reading {
  DiskImage image;
  bool has_format{};
};

/// Whether it is an option of a disk; fails if the option's value is wrong.
Result<bool> take_option(std::string_view option, Reading& reading) {
  constexpr std::string_view format = "format=", partition = "partition=";
  if (option == "ro") {
    reading.image.access = virtio::Access::read_only;
    return true;
  }
  if (option.starts_with(format)) {
    option.remove_prefix(format.size());
    if (option != "raw" && option != "qcow2")
      return usage_error(fmt::format("unknown disk format \"{}\"", printable(std::string{option})), form);
    reading.image.format = option == "raw" ? virtio::DiskFormat::raw : virtio::DiskFormat::qcow2;
    reading.has_format = true;
    return true;
  }
  if (!option.starts_with(partition)) return false;
  option.remove_prefix(partition.size());
  unsigned& number = reading.image.partition;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), number);
  constexpr unsigned max = 128;  // of a GUID partition table, as it usually is
  if (error != std::errc{} || end != option.data() + option.size() || number == 0 || number > max)
    return usage_error(fmt::format("\"{}\" is not a partition's number", printable(std::string{option})),
                       fmt::format("give 1 to {}", max));
  return true;
}

bool begins_as_qcow2(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;  // opening a FIFO would block
  constexpr std::array magic{'Q', 'F', 'I', '\xfb'};
  std::array<char, magic.size()> begin{};
  std::ifstream{path, std::ios::binary}.read(begin.data(), begin.size());
  return begin == magic;
}

}  // namespace

Result<DiskImage> read_disk_image(const std::string& text) {
  std::string_view rest = text;
  Reading reading;
  for (std::size_t comma = 0; (comma = rest.rfind(',')) != std::string_view::npos; rest = rest.substr(0, comma)) {
    VMM_ASSIGN(const bool taken, take_option(rest.substr(comma + 1), reading));
    if (!taken) break;
  }
  DiskImage& image = reading.image;
  image.path = rest;
  if (image.path.empty()) return usage_error("the option of a disk names no image", form);
  if (reading.has_format) return image;
  const bool is_called_so = image.path.ends_with(".qcow2");
  image.format = is_called_so ? virtio::DiskFormat::qcow2 : virtio::DiskFormat::raw;
  if (!is_called_so && begins_as_qcow2(image.path))
    return usage_error(
        fmt::format("{} begins like a qcow2 image, but its name does not end in .qcow2", printable(image.path)),
        "add ,format=qcow2 if the image is yours, and ,format=raw if not");
  return image;
}

}  // namespace vmm::tool
