#include "stat/code_names.hpp"

#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "boot/byte_view.hpp"
#include "snapshot/checksum.hpp"
#include "vpmu/address.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_name = 4096;
constexpr unsigned max_symbols = 4'000'000;

std::string text_at(const ByteView& file, std::uint64_t at) {
  std::string text;
  for (auto c = file.read<char>(at); c && *c != '\0' && text.size() < max_name; c = file.read<char>(at + text.size()))
    text.push_back(*c);
  return text;
}

std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text != nullptr ? std::string{text.get()} : name;
}

/// The headers of an ELF file for x86-64. Every number in it may be wrong.
class Elf {
 public:
  explicit Elf(std::span<const std::byte> bytes) : file_{bytes} {
    const auto header = file_.read<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_X86_64) return;
    header_ = *header;
    is_valid_ = true;
  }
  [[nodiscard]] bool is_valid() const { return is_valid_; }
  [[nodiscard]] const ByteView& file() const { return file_; }
  void each_segment(auto act) const {
    for (unsigned i = 0; is_valid_ && i < header_.e_phnum; ++i)
      if (const auto segment = file_.read<Elf64_Phdr>(header_.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr)))
        act(*segment);
  }
  [[nodiscard]] std::optional<Elf64_Shdr> section(unsigned n) const {
    if (!is_valid_ || n >= header_.e_shnum) return std::nullopt;
    return file_.read<Elf64_Shdr>(header_.e_shoff + std::uint64_t{n} * sizeof(Elf64_Shdr));
  }
  /// The first of that type.
  [[nodiscard]] std::optional<Elf64_Shdr> section_of(std::uint32_t type) const {
    for (unsigned i = 0; is_valid_ && i < header_.e_shnum; ++i)
      if (const auto found = section(i); found && found->sh_type == type) return found;
    return std::nullopt;
  }
  /// Calls `act(address, size)` for each section that calls functions of other files.
  void each_plt(auto act) const {
    const auto names = section(is_valid_ ? header_.e_shstrndx : 0);
    for (unsigned i = 0; names && i < header_.e_shnum; ++i)
      if (const auto one = section(i); one && text_at(file_, names->sh_offset + one->sh_name).starts_with(".plt"))
        act(one->sh_addr, one->sh_size);
  }
  /// Calls `act(address, size, name)` for each function of this table of symbols. One without a size goes to the end of
  /// its section at most.
  void each_function(const Elf64_Shdr& table, auto act) const {
    const auto names = section(table.sh_link);
    if (!names) return;
    const std::uint64_t count = std::min<std::uint64_t>(table.sh_size / sizeof(Elf64_Sym), max_symbols);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto symbol = file_.read<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
      if (!symbol) return;
      const unsigned type = ELF64_ST_TYPE(symbol->st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol->st_shndx == SHN_UNDEF) continue;
      std::uint64_t size = symbol->st_size;
      if (const auto of = section(symbol->st_shndx); of && size == 0)
        size = of->sh_addr + of->sh_size - symbol->st_value;
      act(symbol->st_value, size, text_at(file_, names->sh_offset + symbol->st_name));
    }
  }

 private:
  ByteView file_;
  Elf64_Ehdr header_{};
  bool is_valid_{};
};

/// Where functions begin, of .eh_frame_hdr, which the linker makes so that a table of offsets to itself is sorted. LSB
/// core 10.6.2.
std::vector<std::uint64_t> beginnings_of(const Elf& elf) {
  std::vector<std::uint64_t> all;
  elf.each_segment([&](const Elf64_Phdr& segment) {
    if (segment.p_type != PT_GNU_EH_FRAME) return;
    constexpr std::array<std::uint8_t, 4> usual{1, 0x1B, 0x03, 0x3B};  // version, relative offsets, count, table
    const auto head = elf.file().read<std::array<std::uint8_t, 4>>(segment.p_offset);
    if (!head || *head != usual) return;
    constexpr std::uint64_t count_at = 8, table_at = 12, row = 8;
    const std::uint64_t count =
        std::min(elf.file().read<std::uint32_t>(segment.p_offset + count_at).value_or(0), max_symbols);
    for (std::uint64_t i = 0; i < count; ++i)
      if (const auto offset = elf.file().read<std::int32_t>(segment.p_offset + table_at + i * row))
        all.push_back(segment.p_vaddr + static_cast<std::uint64_t>(std::int64_t{*offset}));
  });
  std::ranges::sort(all);
  return all;
}

std::uint64_t checksum_of(std::span<const std::byte> page) {
  std::array<std::byte, vpmu::page_size> whole{};
  std::ranges::copy(page, whole.begin());
  Checksum sum;
  sum.add(whole);
  return sum.value();
}

/// Of names for the same code, which one is shown.
bool is_better(const std::string& name, const std::string& other) {
  const auto underscores = [](const std::string& of) { return std::min(of.find_first_not_of('_'), of.size()); };
  return std::tuple{name.empty(), underscores(name), name} < std::tuple{other.empty(), underscores(other), other};
}

}  // namespace

void CodeNames::sort(std::vector<Function>& functions) {
  std::ranges::sort(functions, [](const Function& a, const Function& b) {
    return a.at != b.at ? a.at < b.at : is_better(a.name, b.name);
  });
  std::vector<Function> first_of_each;
  for (Function& function : functions)
    if (first_of_each.empty() || first_of_each.back().at != function.at) first_of_each.push_back(std::move(function));
  functions = std::move(first_of_each);
}

void CodeNames::add_file(const std::string& path, std::span<const std::byte> bytes, std::span<const std::byte> debug) {
  const Elf elf{bytes};
  if (!elf.is_valid()) return;
  File file{.path = path};
  const auto take = [&file](const Elf& from, std::uint32_t type) {
    if (const auto table = from.section_of(type))
      from.each_function(*table, [&file](std::uint64_t at, std::uint64_t size, const std::string& name) {
        if (!name.empty()) file.functions.push_back({.at = at, .size = size, .name = demangled(name)});
      });
    return !file.functions.empty();
  };
  if (!take(Elf{debug}, SHT_SYMTAB) && !take(elf, SHT_SYMTAB)) take(elf, SHT_DYNSYM);
  elf.each_plt([&file](std::uint64_t at, std::uint64_t size) {
    file.functions.push_back({.at = at, .size = size, .name = "[plt]"});
  });
  sort(file.functions);
  file.beginnings = beginnings_of(elf);
  elf.each_segment([&](const Elf64_Phdr& segment) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) return;
    const std::uint64_t end = std::min<std::uint64_t>(segment.p_offset + segment.p_filesz, bytes.size());
    for (std::uint64_t at = segment.p_offset - segment.p_offset % vpmu::page_size; at < end; at += vpmu::page_size) {
      const auto page = bytes.subspan(at, std::min<std::uint64_t>(vpmu::page_size, bytes.size() - at));
      pages_[checksum_of(page)].push_back({.file = files_.size(), .at = segment.p_vaddr + (at - segment.p_offset)});
    }
  });
  files_.push_back(std::move(file));
}

void CodeNames::add_kernel(std::string_view kallsyms) {
  while (!kallsyms.empty()) {
    const std::string_view line = kallsyms.substr(0, kallsyms.find('\n'));
    kallsyms.remove_prefix(std::min(kallsyms.size(), line.size() + 1));
    // ffffffff81000000 T name\t[module]
    constexpr std::size_t digits = 16, name_at = digits + 3;
    constexpr unsigned hexadecimal = 16;
    std::uint64_t at{};
    const std::string_view address = line.substr(0, digits);
    if (line.size() <= name_at || std::from_chars(address.begin(), address.end(), at, hexadecimal).ptr != address.end())
      continue;
    // Data ends the function before it, and is not shown.
    const bool is_code = std::string_view{"tTwW"}.find(line[digits + 1]) != std::string_view::npos;
    const std::string_view rest = line.substr(name_at);
    const std::size_t tab = rest.find('\t');
    if (tab != std::string_view::npos) modules_[at] = rest.substr(tab + 1);
    kernel_.push_back({.at = at, .name = is_code ? std::string{rest.substr(0, std::min(tab, max_name))} : ""});
  }
  sort(kernel_);
}

const CodeNames::Function* CodeNames::find(const std::vector<Function>& functions, std::uint64_t at) {
  auto found = std::ranges::upper_bound(functions, at, {}, &Function::at);
  if (found == functions.begin()) return nullptr;
  --found;
  return found->size == 0 || at - found->at < found->size ? &*found : nullptr;
}

CodeName CodeNames::name_in(const File& file, std::uint64_t at) const {
  if (const Function* const function = find(file.functions, at)) return {.function = function->name, .file = file.path};
  const auto next = std::ranges::upper_bound(file.beginnings, at);
  if (next == file.beginnings.begin()) return {.function = std::string{unknown}, .file = file.path};
  return {.function = fmt::format("{:#x}", *std::prev(next)), .file = file.path};
}

/// Several files may have the same page: then it is that of one that is loaded so elsewhere.
const CodeNames::Page* CodeNames::choose(const CodePlace& place, const std::set<Load>& sure) const {
  const auto found = pages_.find(place.page);
  if (found == pages_.end()) return nullptr;
  const std::uint64_t page = place.rip - place.rip % vpmu::page_size;
  for (const Page& candidate : found->second)
    if (sure.contains({candidate.file, page - candidate.at})) return &candidate;
  return &found->second.front();
}

std::vector<CodeName> CodeNames::find(std::span<const CodePlace> places) const {
  std::set<Load> sure;
  for (const CodePlace& place : places)
    if (const auto found = pages_.find(place.page); found != pages_.end() && found->second.size() == 1)
      sure.emplace(found->second.front().file, place.rip - place.rip % vpmu::page_size - found->second.front().at);
  std::vector<CodeName> names;
  names.reserve(places.size());
  for (const CodePlace& place : places) {
    if (place.is_kernels()) {
      const Function* function = find(kernel_, place.rip);
      if (function != nullptr && function->name.empty()) function = nullptr;
      const auto module = function == nullptr ? modules_.end() : modules_.find(function->at);
      names.push_back({.function = function == nullptr ? std::string{unknown} : function->name,
                       .file = module == modules_.end() ? std::string{kernel} : module->second});
      continue;
    }
    const Page* const page = choose(place, sure);
    if (page == nullptr)
      names.push_back({.function = std::string{unknown}, .file = std::string{anonymous}});
    else
      names.push_back(name_in(files_[page->file], page->at + place.rip % vpmu::page_size));
  }
  return names;
}

std::string debug_file_of(std::span<const std::byte> file) {
  const Elf elf{file};
  std::string path;
  elf.each_segment([&](const Elf64_Phdr& segment) {
    if (segment.p_type != PT_NOTE || !path.empty()) return;
    constexpr std::uint64_t align = 4, most = 64;
    for (std::uint64_t at = segment.p_offset, n = 0; n < most && at < segment.p_offset + segment.p_filesz; ++n) {
      const auto note = elf.file().read<Elf64_Nhdr>(at);
      if (!note) return;
      const std::uint64_t name = at + sizeof(Elf64_Nhdr), id = name + (note->n_namesz + align - 1) / align * align;
      if (note->n_type == NT_GNU_BUILD_ID && text_at(elf.file(), name) == ELF_NOTE_GNU && note->n_descsz <= most) {
        std::string digits;
        for (std::uint64_t i = 0; i < note->n_descsz; ++i)
          digits += fmt::format("{:02x}", elf.file().read<std::uint8_t>(id + i).value_or(0));
        if (digits.size() > 2)
          path = fmt::format("/usr/lib/debug/.build-id/{}/{}.debug", digits.substr(0, 2), digits.substr(2));
        return;
      }
      at = id + (note->n_descsz + align - 1) / align * align;
    }
  });
  return path;
}

std::string interpreter_of(std::span<const std::byte> file) {
  const ByteView view{file};
  if (text_at(view, 0).starts_with("#!")) {
    const std::string text = text_at(view, 2);
    const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
    return text.substr(begin, text.find_first_of(" \t\n", begin) - begin);
  }
  std::string path;
  Elf{file}.each_segment([&](const Elf64_Phdr& segment) {
    if (segment.p_type == PT_INTERP) path = text_at(view, segment.p_offset);
  });
  return path;
}

}  // namespace vmm::tool
