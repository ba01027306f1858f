#include "boot/elf_image.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "boot/byte_view.hpp"
#include "boot/layout.hpp"

namespace vmm {
namespace {

Failure bad_elf(const std::string& what) {
  return usage_error("bad kernel: " + what, "give a static 64-bit x86 ELF kernel or a bzImage with --kernel");
}

Result<void> load_segment(const GuestMemory& memory, const ByteView& view, const Elf64_Phdr& segment) {
  const auto contents = view.slice(segment.p_offset, segment.p_filesz);
  if (!contents || segment.p_filesz > segment.p_memsz) {
    return bad_elf(fmt::format("truncated: a segment needs {} bytes at file offset {:#x}, the file has {}",
                               segment.p_filesz, segment.p_offset, view.size()));
  }
  const vpmu::GuestPhysical at{segment.p_paddr};
  const auto target = memory.bytes_at(at, segment.p_memsz);
  if (at < layout::high_ram || target.size() != segment.p_memsz) {
    return bad_elf(fmt::format("a segment of {} bytes at {:#x} lies outside the memory of {} MiB above 1 MiB",
                               segment.p_memsz, segment.p_paddr, memory.bytes() >> 20U));
  }
  std::ranges::copy(*contents, target.begin());
  std::ranges::fill(target.subspan(contents->size()), std::byte{0});
  return {};
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
  if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0) {
    return bad_elf(fmt::format("{} program headers of {} bytes", header->e_phnum, header->e_phentsize));
  }
  for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = view.read<Elf64_Phdr>(header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) {
      return bad_elf(fmt::format("truncated: program header {} lies beyond the file's {} bytes", i, file.size()));
    }
    if (segment->p_type == PT_LOAD && segment->p_memsz != 0) {
      VMM_TRY(load_segment(memory, view, *segment));
    }
  }
  const vpmu::GuestPhysical entry{header->e_entry};
  if (entry < layout::high_ram || memory.bytes_at(entry, 1).empty()) {
    return bad_elf(fmt::format("its entry point {:#x} is not in memory", header->e_entry));
  }
  return entry;
}

}  // namespace vmm
