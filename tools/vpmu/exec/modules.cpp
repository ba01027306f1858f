#include "exec/modules.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "exec/decompress.hpp"
#include "exec/module_info.hpp"
#include "files/input_file.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_module_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t max_list_bytes = std::uint64_t{16} << 20;
constexpr auto suffixes = std::to_array<std::string_view>({".ko", ".ko.xz", ".ko.zst"});

/// The name as the kernel writes it: a file's name may have dashes.
std::string with_underscores(std::string_view name) {
  std::string plain{name};
  std::ranges::replace(plain, '-', '_');
  return plain;
}

/// The name of the module in a file; empty for another file.
std::string module_name(const fs::path& path) {
  const std::string file = path.filename();
  for (const std::string_view suffix : suffixes)
    if (file.ends_with(suffix)) return with_underscores(file.substr(0, file.size() - suffix.size()));
  return {};
}

/// The paths at the starts of the lines of a file that depmod writes; none if there is no such file.
Result<std::vector<std::string>> listed_paths(const fs::path& list) {
  std::vector<std::string> paths;
  std::error_code error;
  if (!fs::exists(list, error)) return paths;
  VMM_ASSIGN(const auto bytes, read_whole_file(list, {"the list of modules", "run depmod"}, max_list_bytes));
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    paths.emplace_back(line.substr(0, line.find(':')));
    begin += line.size() + 1;
  }
  return paths;
}

/// The modules in a directory.
class Modules {
 public:
  static Result<Modules> open(const fs::path& directory) {
    Modules modules;
    VMM_ASSIGN(const auto built_in, listed_paths(directory / "modules.builtin"));
    for (const std::string& path : built_in) modules.built_in_.insert(module_name(path));
    VMM_ASSIGN(const auto listed, listed_paths(directory / "modules.dep"));
    for (const std::string& path : listed) modules.add(directory / path);
    if (listed.empty()) modules.add_found(directory);
    return modules;
  }

  [[nodiscard]] bool is_built_in(const std::string& name) const { return built_in_.contains(name); }
  [[nodiscard]] const fs::path* find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : &found->second;
  }

 private:
  void add(const fs::path& path) {
    if (std::string name = module_name(path); !name.empty()) files_.emplace(std::move(name), path);
  }
  /// All modules below the directory, in an order that does not depend on the file system.
  void add_found(const fs::path& directory) {
    std::error_code error;
    std::vector<fs::path> paths;
    for (fs::recursive_directory_iterator at{directory, error}, end; !error && at != end; at.increment(error))
      paths.push_back(at->path());
    std::ranges::sort(paths);
    for (const fs::path& path : paths) add(path);
  }

  std::set<std::string> built_in_;
  std::map<std::string, fs::path> files_;
};

Result<std::vector<std::byte>> read_module(const fs::path& path) {
  VMM_ASSIGN(const auto file,
             read_whole_file(path, {"the module", "install the kernel's package again"}, max_module_bytes));
  auto content = decompress(file, max_module_bytes);
  if (!content) content.error().what = fmt::format("the module {}: {}", printable(path.native()), content.error().what);
  return content;
}

/// The modules in the order in which they were requested, each after those it depends on.
class Loading {
 public:
  Loading(const Modules& modules, const fs::path& directory, std::span<const KernelModule> loaded)
      : modules_{&modules}, directory_{&directory} {
    for (const KernelModule& module : loaded) seen_.insert(module.name);
  }

  Result<void> add(const std::string& wanted) {
    VMM_TRY(begin(wanted));
    while (!begun_.empty()) {
      Begun& last = begun_.back();
      if (last.next < last.needed.size()) {
        VMM_TRY(begin(last.needed[last.next++]));
      } else {
        loaded_.push_back(std::move(last.module));
        begun_.pop_back();
      }
    }
    return {};
  }

  std::vector<KernelModule> take() { return std::move(loaded_); }

 private:
  /// A module whose dependencies are being loaded.
  struct Begun {
    KernelModule module;
    std::vector<std::string> needed;
    std::size_t next{};
  };

  Result<void> begin(const std::string& wanted) {
    const std::string name = with_underscores(wanted);
    if (modules_->is_built_in(name) || !seen_.insert(name).second) return {};
    const fs::path* const path = modules_->find(name);
    if (path == nullptr)
      return usage_error(
          fmt::format("no module {} in {}, and it is not built in", printable(name), printable(directory_->native())),
          "give the modules of this kernel with --modules, or build it in");
    VMM_ASSIGN(auto content, read_module(*path));
    auto needed = module_dependencies(content);
    if (!needed) return usage_error(fmt::format("the module {}: {}", printable(path->native()), needed.error().what));
    begun_.push_back({.module = {name, std::move(content)}, .needed = *std::move(needed)});
    return {};
  }

  const Modules* modules_;
  const fs::path* directory_;
  std::set<std::string> seen_;
  std::vector<Begun> begun_;
  std::vector<KernelModule> loaded_;
};

bool has_modules(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / "modules.dep", error) || fs::exists(directory / "modules.builtin", error) ||
         fs::is_directory(directory / "kernel", error);
}

}  // namespace

std::span<const char* const> exec_module_names() {
  // The console comes first: the host opens its ports while the rest is loaded.
  static constexpr std::array<const char*, 4> names{"virtio_pci", "virtio_console", "virtiofs", "overlay"};
  return names;
}

Result<std::vector<KernelModule>> find_modules(const fs::path& directory, std::span<const std::string> names,
                                               std::span<const KernelModule> loaded) {
  VMM_ASSIGN(const Modules modules, Modules::open(directory));
  Loading loading{modules, directory, loaded};
  for (const std::string& name : names) VMM_TRY(loading.add(name));
  return loading.take();
}

Result<std::optional<fs::path>> find_module_directory(const std::string& given, const fs::path& kernel,
                                                      const std::string& version) {
  const fs::path installed = fs::path{"lib/modules"} / version;
  if (!given.empty()) {
    for (const fs::path& directory : {fs::path{given}, given / installed})
      if (has_modules(directory)) return directory;
    return usage_error(fmt::format("--modules {}: no kernel's modules", printable(given)),
                       fmt::format("give a directory like /{}", installed.native()));
  }
  std::error_code error;
  const fs::path above = fs::absolute(kernel, error).parent_path().parent_path();
  for (const fs::path& directory : {"/" / installed, above / installed, above / version})
    if (has_modules(directory)) return directory;
  return std::nullopt;
}

}  // namespace vmm::tool
