#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/modules.hpp"
#include "exec/request.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// An archive that the kernel unpacks into its first root: cpio's format "newc", Linux
/// Documentation/driver-api/early-userspace/buffer-format.rst. The same entries give the same bytes.
class CpioArchive {
 public:
  void add_directory(std::string_view path, std::uint32_t permissions);
  void add_file(std::string_view path, std::uint32_t permissions, std::span<const std::byte> content);
  void add_character_device(std::string_view path, std::uint32_t permissions, std::uint32_t major, std::uint32_t minor);
  /// The archive with its trailer; empty afterwards.
  std::vector<std::byte> take();

 private:
  struct Entry {
    std::string_view path;
    std::uint32_t mode;
    std::span<const std::byte> content;
    std::uint32_t major, minor;
  };
  void add(const Entry& entry);
  void pad();

  std::vector<std::byte> bytes_;
  std::uint32_t inode_{};
};

/// The init of `vpmu exec`'s guest, a static program that is part of this one.
std::span<const std::byte> exec_init();

/// The modules in an initramfs.
struct ExecModules {
  std::vector<KernelModule> first;  ///< Loaded at once.
  std::vector<KernelModule> later;  ///< Loaded if the request names them: the guest has not seen their devices before.
};

/// The name of the module's file in the initramfs.
std::string file_name(const KernelModule& module);

/// The initramfs of `vpmu exec`: init, the modules, and, if not null, the request, which then does not come from the
/// host. Fails as write_request() does. Cost: a copy of the modules.
Result<std::vector<std::byte>> make_exec_initramfs(const ExecModules& modules, const ExecRequest* request = nullptr);

}  // namespace vmm::tool
