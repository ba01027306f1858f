#include "boot/elf_image.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "boot/byte_view.hpp"
#include "boot/layout.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

Failure bad_elf(const std::string& what) {
  return usage_error("bad kernel: " + what, "give a static 64-bit x86 ELF kernel or a bzImage with --kernel");
}

/// A kernel has five or so.
constexpr std::uint16_t most_headers = 256;

/// The segments that are to be loaded, in the order of their addresses: each is in the file and in memory, and none
/// overlaps another.
Result<std::vector<Elf64_Phdr>> check_segments(const GuestMemory& memory, const ByteView& view,
                                               const Elf64_Ehdr& header) {
  std::vector<Elf64_Phdr> segments;
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto at = view.slice(header.e_phoff, (i + 1) * sizeof(Elf64_Phdr));
    if (!at)
      return bad_elf(fmt::format("truncated: program header {} lies beyond the file's {} bytes", i, view.size()));
    const auto segment = *ByteView{*at}.read<Elf64_Phdr>(i * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0) continue;
    if (segment.p_filesz > segment.p_memsz)
      return bad_elf(
          fmt::format("a segment has {} bytes in the file and {} in memory", segment.p_filesz, segment.p_memsz));
    if (!view.slice(segment.p_offset, segment.p_filesz))
      return bad_elf(fmt::format("truncated: a segment needs {} bytes at file offset {:#x}, the file has {}",
                                 segment.p_filesz, segment.p_offset, view.size()));
    const vpmu::GuestPhysical to{segment.p_paddr};
    if (to < layout::high_ram || memory.bytes_at(to, segment.p_memsz).empty())
      return bad_elf(fmt::format("a segment of {} bytes at {:#x} lies outside the memory of {} MiB above 1 MiB",
                                 segment.p_memsz, segment.p_paddr, memory.bytes() >> 20U));
    segments.push_back(segment);
  }
  std::ranges::sort(segments, {}, &Elf64_Phdr::p_paddr);
  for (std::size_t i = 1; i < segments.size(); ++i)
    if (segments[i].p_paddr - segments[i - 1].p_paddr < segments[i - 1].p_memsz)
      return bad_elf(
          fmt::format("the segments at {:#x} and {:#x} overlap", segments[i - 1].p_paddr, segments[i].p_paddr));
  return segments;
}

}  // namespace

bool is_elf_image(std::span<const std::byte> file) {
  return file.size() >= SELFMAG && std::memcmp(file.data(), ELFMAG, SELFMAG) == 0;
}

Result<vpmu::GuestPhysical> load_elf(const GuestMemory& memory, std::span<const std::byte> file) {
  const ByteView view{file};
  const auto header = view.read<Elf64_Ehdr>(0);
  if (!is_elf_image(file) || !header) {
    return bad_elf(fmt::format("{} bytes do not hold an ELF header", file.size()));
  }
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_X86_64 || header->e_type != ET_EXEC) {
    return bad_elf(fmt::format("ELF class {}, machine {}, type {} is no static x86-64 executable",
                               header->e_ident[EI_CLASS], header->e_machine, header->e_type));
  }
  if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0 || header->e_phnum > most_headers) {
    return bad_elf(fmt::format("{} program headers of {} bytes, where 1 to {} of {} bytes are taken", header->e_phnum,
                               header->e_phentsize, most_headers, sizeof(Elf64_Phdr)));
  }
  VMM_ASSIGN(const auto segments, check_segments(memory, view, *header));
  const auto holds_entry = [&](const Elf64_Phdr& segment) {
    return header->e_entry - segment.p_paddr < segment.p_memsz;
  };
  if (std::ranges::none_of(segments, holds_entry)) {
    return bad_elf(fmt::format("its entry point {:#x} is in none of the {} segments that are loaded", header->e_entry,
                               segments.size()));
  }
  for (const Elf64_Phdr& segment : segments) {
    VMM_ASSERT(memory.write(vpmu::GuestPhysical{segment.p_paddr}, *view.slice(segment.p_offset, segment.p_filesz)));
  }
  return vpmu::GuestPhysical{header->e_entry};
}

}  // namespace vmm
