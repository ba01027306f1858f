#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// A module as the kernel takes it: not compressed.
struct KernelModule {
  std::string name;  ///< With underscores, as the kernel writes it.
  std::vector<std::byte> content;
};

/// The modules that the guest of `vpmu exec` needs, where they are not built in.
std::span<const char* const> exec_module_names();

/// These modules and those they depend on, each once, in an order in which they can be loaded; none for what is built
/// in. `directory` is a kernel's /lib/modules/VERSION, which may be as a package has it: without modules.dep. Fails
/// with kind usage where a module is not there, or is none. Cost: milliseconds; a walk of the directory without
/// modules.dep.
Result<std::vector<KernelModule>> find_modules(const std::filesystem::path& directory,
                                               std::span<const std::string> names);

/// The directory for find_modules(): `given`, else the system's, else the one of the package that the kernel was
/// unpacked from: ../lib/modules/VERSION beside it, or the kernel's own directory, where packages have it since Linux
/// 7.3 of Debian. None where there is none: then everything should be built in. Fails with kind usage where `given` has
/// no modules.
Result<std::optional<std::filesystem::path>> find_module_directory(const std::string& given,
                                                                   const std::filesystem::path& kernel,
                                                                   const std::string& version);

}  // namespace vmm::tool
