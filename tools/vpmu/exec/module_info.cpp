#include "exec/module_info.hpp"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace vmm::tool {
namespace {

using Bytes = std::span<const std::byte>;

/// Empty if the file does not have these bytes.
Bytes part_of(Bytes file, std::uint64_t offset, std::uint64_t size) {
  if (offset > file.size() || size > file.size() - offset) return {};
  return file.subspan(offset, size);
}

template <class T>
std::optional<T> read(Bytes file, std::uint64_t offset) {
  const Bytes part = part_of(file, offset, sizeof(T));
  if (part.empty()) return std::nullopt;
  T value;
  std::memcpy(&value, part.data(), sizeof value);
  return value;
}

/// The text up to its NUL.
std::string_view text_at(Bytes strings, std::uint64_t offset) {
  if (offset >= strings.size()) return {};
  const auto* const text = reinterpret_cast<const char*>(strings.data()) + offset;
  return {text, ::strnlen(text, strings.size() - offset)};
}

std::optional<Elf64_Shdr> section_header(Bytes module, const Elf64_Ehdr& header, std::uint64_t index) {
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > module.size()) return std::nullopt;
  return read<Elf64_Shdr>(module, header.e_shoff + index * sizeof(Elf64_Shdr));
}

std::optional<Bytes> find_section(Bytes module, std::string_view name) {
  const auto header = read<Elf64_Ehdr>(module, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != EM_X86_64)
    return std::nullopt;
  const auto names_header = section_header(module, *header, header->e_shstrndx);
  if (!names_header) return std::nullopt;
  const Bytes names = part_of(module, names_header->sh_offset, names_header->sh_size);
  for (std::uint64_t index = 0; index < header->e_shnum; ++index) {
    const auto section = section_header(module, *header, index);
    if (!section) return std::nullopt;
    if (text_at(names, section->sh_name) == name) return part_of(module, section->sh_offset, section->sh_size);
  }
  return std::nullopt;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) names.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> module_dependencies(std::span<const std::byte> module) {
  const auto info = find_section(module, ".modinfo");
  if (!info) return usage_error("it is no kernel module for x86-64");
  constexpr std::string_view key = "depends=";
  for (std::size_t place = 0; place < info->size();) {
    const std::string_view line = text_at(*info, place);
    if (line.starts_with(key)) return split(line.substr(key.size()));
    place += line.size() + 1;
  }
  return std::vector<std::string>{};
}

}  // namespace vmm::tool
