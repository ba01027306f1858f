#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sources/code_counts.hpp"

namespace vmm::tool {

/// A function, and the file that it is in: a path, "[kernel]" or a module of it in brackets, or "[anonymous]".
struct CodeName {
  std::string function, file;
  auto operator<=>(const CodeName&) const = default;
};

/// Finds the names of code that ran in a guest. A program's page of code is as it is in its file, wherever it is
/// loaded: so files are found by what is in their pages, and nothing of the guest's memory maps need be known.
class CodeNames {
 public:
  /// The code of an ELF file for x86-64; other files have none. `debug` is the file with its debugging symbols, if that
  /// is another one. Reads .symtab, else .dynsym; code that has no symbol is called by where .eh_frame_hdr says that
  /// its function begins. A damaged file has fewer names.
  void add_file(const std::string& path, std::span<const std::byte> bytes, std::span<const std::byte> debug = {});
  /// What /proc/kallsyms has.
  void add_kernel(std::string_view kallsyms);
  /// Their names, in the same order.
  [[nodiscard]] std::vector<CodeName> find(std::span<const CodePlace> places) const;

  static constexpr std::string_view unknown = "[unknown]", anonymous = "[anonymous]", kernel = "[kernel]";

 private:
  struct Function {
    std::uint64_t at{}, size{};  ///< 0: up to the next one.
    std::string name;
  };
  struct File {
    std::string path;
    std::vector<Function> functions{};        ///< By address.
    std::vector<std::uint64_t> beginnings{};  ///< Of functions, by .eh_frame_hdr; sorted.
  };
  /// A page of a file, and the address that it is linked for.
  struct Page {
    std::size_t file{};
    std::uint64_t at{};
    auto operator<=>(const Page&) const = default;
  };
  /// Where a file is loaded: by how much beyond the address that it is linked for.
  using Load = std::pair<std::size_t, std::uint64_t>;

  static void sort(std::vector<Function>& functions);
  static const Function* find(const std::vector<Function>& functions, std::uint64_t at);
  [[nodiscard]] CodeName name_in(const File& file, std::uint64_t at) const;
  [[nodiscard]] const Page* choose(const CodePlace& place, const std::set<Load>& sure) const;

  std::vector<File> files_;
  std::unordered_map<std::uint64_t, std::vector<Page>> pages_;  ///< By CodePlace::page.
  std::vector<Function> kernel_;                                ///< By address.
  std::map<std::uint64_t, std::string> modules_;                ///< Of the kernel, by their functions' addresses.
};

/// Where the debugging symbols of an ELF file are, by its build ID: Debian's place for them; empty if it has none.
std::string debug_file_of(std::span<const std::byte> file);

/// What runs an executable file: that of "#!", or of PT_INTERP; empty: nothing.
std::string interpreter_of(std::span<const std::byte> file);

}  // namespace vmm::tool
