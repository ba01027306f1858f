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

/// The modules that the guest of `vpmu exec` needs, unless they are built in.
std::span<const char* const> exec_module_names();

/// These modules and those they depend on, each once, in an order in which they can be loaded, without those that are
/// built in or in `loaded`. `directory` is a kernel's /lib/modules/VERSION, possibly as in a package: without
/// modules.dep. Fails with kind usage if a module is missing or is no module. Cost: milliseconds; without modules.dep,
/// the whole directory is searched.
Result<std::vector<KernelModule>> find_modules(const std::filesystem::path& directory,
                                               std::span<const std::string> names,
                                               std::span<const KernelModule> loaded = {});

/// The directory for find_modules(): `given`, else the system's, else that of the package that the kernel was
/// unpacked from: ../lib/modules/VERSION beside it, or the kernel's own directory, as in Debian's packages since Linux
/// 7.3. None if none of these exists: then everything should be built in. Fails with kind usage if `given` has
/// no modules.
Result<std::optional<std::filesystem::path>> find_module_directory(const std::string& given,
                                                                   const std::filesystem::path& kernel,
                                                                   const std::string& version);

}  // namespace vmm::tool
