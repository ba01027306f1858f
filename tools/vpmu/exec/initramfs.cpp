#include "exec/initramfs.hpp"

#include <sys/stat.h>

#include <fmt/format.h>

// The guest's init: init_image.S.
extern "C" const std::byte vpmu_exec_init[], vpmu_exec_init_end[];

namespace vmm::tool {
namespace {

constexpr std::uint32_t readable_file = 0644;
constexpr std::uint32_t executable = 0755;

}  // namespace

void CpioArchive::add_directory(std::string_view path, std::uint32_t permissions) {
  add({.path = path, .mode = S_IFDIR | permissions});
}

void CpioArchive::add_file(std::string_view path, std::uint32_t permissions, std::span<const std::byte> content) {
  add({.path = path, .mode = S_IFREG | permissions, .content = content});
}

void CpioArchive::add_character_device(std::string_view path, std::uint32_t permissions, std::uint32_t major,
                                       std::uint32_t minor) {
  add({.path = path, .mode = S_IFCHR | permissions, .major = major, .minor = minor});
}

std::vector<std::byte> CpioArchive::take() {
  add({.path = "TRAILER!!!"});
  inode_ = 0;
  return std::exchange(bytes_, {});
}

void CpioArchive::pad() {
  constexpr std::size_t alignment = 4;
  while (bytes_.size() % alignment != 0) bytes_.push_back({});
}

void CpioArchive::add(const Entry& entry) {
  // Magic, inode, mode, user, group, links, time, size, device of the file system, device, length of the name,
  // checksum.
  const std::string header = fmt::format(
      "070701{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{}", ++inode_, entry.mode, 0,
      0, 1, 0, entry.content.size(), 0, 0, entry.major, entry.minor, entry.path.size() + 1, 0, entry.path);
  const auto header_bytes = std::as_bytes(std::span{header.c_str(), header.size() + 1});
  bytes_.insert(bytes_.end(), header_bytes.begin(), header_bytes.end());
  pad();
  bytes_.insert(bytes_.end(), entry.content.begin(), entry.content.end());
  pad();
}

std::span<const std::byte> exec_init() { return {vpmu_exec_init, vpmu_exec_init_end}; }

std::string file_name(const KernelModule& module) { return module.name + ".ko"; }

Result<std::vector<std::byte>> make_exec_initramfs(const ExecModules& modules, const ExecRequest* request) {
  CpioArchive archive;
  const std::string directory = exec_module_directory;
  // Init's mount points.
  for (const char* const path : {"dev", "proc", "sys", "lower", "upper", "root"})
    archive.add_directory(path, executable);
  archive.add_directory(directory, executable);
  // The kernel opens the console for init before init mounts anything.
  archive.add_character_device("dev/console", 0600, 5, 1);
  std::string list;
  for (const KernelModule& module : modules.first) list += file_name(module) + "\n";
  for (const auto& some : {std::span{modules.first}, std::span{modules.later}})
    for (const KernelModule& module : some)
      archive.add_file(directory + "/" + file_name(module), readable_file, module.content);
  archive.add_file(exec_module_list, readable_file, std::as_bytes(std::span{list}));
  if (request != nullptr) {
    VMM_ASSIGN(const std::string text, write_request(*request));
    archive.add_file(exec_request_file, readable_file, std::as_bytes(std::span{text}));
  }
  archive.add_file("init", executable, exec_init());
  return archive.take();
}

}  // namespace vmm::tool
