#include "test_kernel.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "boot/byte_view.hpp"
#include "files/input_file.hpp"
#include "gt/protocol.hpp"

namespace gt_runner {
namespace {

using Bytes = std::span<const std::byte>;

vmm::Failure bad_kernel(const std::string& path, std::string_view why) {
  return vmm::usage_error(fmt::format("{} is not a guest test kernel: {}", path, why),
                          "give the .elf file that the build made of guest-tests/");
}

std::string field_text(std::span<const char> field) { return {field.data(), ::strnlen(field.data(), field.size())}; }

std::optional<Bytes> contents(const vmm::ByteView& file, const Elf64_Shdr& section) {
  return file.slice(section.sh_offset, section.sh_size);
}

/// The section called gt::test_section.
constexpr std::uint64_t max_bytes = 256U << 20U;

std::optional<Bytes> find_tests(const vmm::ByteView& file, const Elf64_Ehdr& header) {
  const auto section_at = [&](unsigned i) { return file.read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)); };
  const auto names_section = section_at(header.e_shstrndx);
  const auto names = names_section ? contents(file, *names_section) : std::nullopt;
  if (!names) return std::nullopt;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = section_at(i);
    if (!section || section->sh_name >= names->size()) return std::nullopt;
    const auto* const name = reinterpret_cast<const char*>(names->data()) + section->sh_name;
    if (std::string_view{name, ::strnlen(name, names->size() - section->sh_name)} == gt::test_section)
      return contents(file, *section);
  }
  return std::nullopt;
}

}  // namespace

vmm::Result<TestKernel> TestKernel::open(const std::string& path) {
  VMM_ASSIGN(const auto image,
             vmm::read_whole_file(
                 path, {.what = "the test kernel", .advice = "give the file of the guest tests' build"}, max_bytes));
  const vmm::ByteView file{image};
  TestKernel kernel;
  kernel.path_ = path;
  const auto header = file.read<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != EM_X86_64)
    return bad_kernel(path, "it is not an ELF file for x86-64");
  const auto section = find_tests(file, *header);
  if (!section) return bad_kernel(path, fmt::format("it has no section {}", gt::test_section));
  for (std::size_t i = 0; (i + 1) * sizeof(gt::TestDescriptor) <= section->size(); ++i) {
    const auto descriptor = *vmm::ByteView{*section}.read<gt::TestDescriptor>(i * sizeof(gt::TestDescriptor));
    kernel.tests_.push_back({.index = i, .name = field_text(descriptor.name), .needs = descriptor.needs});
  }
  if (kernel.tests_.empty()) return bad_kernel(path, fmt::format("section {} lists no tests", gt::test_section));
  return kernel;
}

}  // namespace gt_runner
