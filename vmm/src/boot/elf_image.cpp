#include "boot/elf_image.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "boot/byte_view.hpp"
#include "boot/layout.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

Failure bad_elf(const std::string& what) {
  return usage_error("bad kernel: " + what,
                     "give a bzImage, a static 64-bit x86 ELF kernel or a multiboot one with --kernel");
}

/// A kernel has five or so.
constexpr std::uint16_t max_headers = 256;

/// Of either class.
struct Segment {
  std::uint64_t offset, to, file_bytes, bytes;
};
struct ElfHeader {
  std::uint64_t entry, segments_at;
  std::uint16_t segment_bytes, segments;
};

/// What a kernel of the class finds below 1 MiB when it begins.
struct Taken {
  vpmu::GuestPhysical first, end;
  const char* what;
};
constexpr std::array taken_64{Taken{layout::gdt, layout::stack_top, "the page tables and the stack"}};
constexpr std::array taken_32{
    Taken{layout::gdt, layout::multiboot_info + vpmu::page_size, "the multiboot information"},
    Taken{layout::command_line, layout::command_line + layout::command_line_room, "the command line"}};

/// Fails if the segment lies where something else is, or outside RAM.
Result<void> check_place(const GuestMemory& memory, const Segment& segment, std::span<const Taken> taken) {
  const vpmu::GuestPhysical first{segment.to};
  const vpmu::GuestPhysical end{first.value() + segment.bytes};
  const bool is_ram = !memory.bytes_at(first, segment.bytes).empty();
  if (!is_ram || (first < layout::high_ram && end > layout::low_ram_end))
    return bad_elf(fmt::format("a segment of {} bytes at {:#x} lies outside the memory: {} MiB without {:#x} to {:#x}",
                               segment.bytes, segment.to, memory.bytes() >> 20U, layout::low_ram_end.value(),
                               layout::high_ram.value() - 1));
  for (const Taken& t : taken)
    if (first < t.end && end > t.first)
      return bad_elf(fmt::format("a segment of {} bytes at {:#x} lies on {} at {:#x} to {:#x}", segment.bytes,
                                 segment.to, t.what, t.first.value(), t.end.value() - 1));
  return {};
}

struct Elf64 {
  using FileHeader = Elf64_Ehdr;
  using ProgramHeader = Elf64_Phdr;
  static constexpr unsigned machine = EM_X86_64, of_class = ELFCLASS64;
  static constexpr auto name = "x86-64";
  static std::span<const Taken> taken() { return taken_64; }
};
struct Elf32 {
  using FileHeader = Elf32_Ehdr;
  using ProgramHeader = Elf32_Phdr;
  static constexpr unsigned machine = EM_386, of_class = ELFCLASS32;
  static constexpr auto name = "i386";
  static std::span<const Taken> taken() { return taken_32; }
};

template <class Elf>
Result<ElfHeader> check_header(const ByteView& view) {
  const auto header = view.read<typename Elf::FileHeader>(0);
  if (!header) return bad_elf(fmt::format("its {} bytes are too few for an ELF header", view.size()));
  if (header->e_ident[EI_CLASS] != Elf::of_class || header->e_machine != Elf::machine || header->e_type != ET_EXEC)
    return bad_elf(fmt::format("ELF class {}, machine {}, type {} is not a static {} executable",
                               header->e_ident[EI_CLASS], header->e_machine, header->e_type, Elf::name));
  constexpr std::size_t size = sizeof(typename Elf::ProgramHeader);
  if (header->e_phentsize != size || header->e_phnum == 0 || header->e_phnum > max_headers)
    return bad_elf(fmt::format("it has {} program headers of {} bytes; supported are 1 to {} of {} bytes",
                               header->e_phnum, header->e_phentsize, max_headers, size));
  return ElfHeader{header->e_entry, header->e_phoff, header->e_phentsize, header->e_phnum};
}

/// The segments that are to be loaded, in the order of their addresses: each is in the file and in memory, and none
/// overlaps another.
template <class Elf>
Result<std::vector<Segment>> check_segments(const GuestMemory& memory, const ByteView& view, const ElfHeader& header) {
  using ProgramHeader = typename Elf::ProgramHeader;
  std::vector<Segment> segments;
  for (std::uint64_t i = 0; i < header.segments; ++i) {
    const auto at = view.slice(header.segments_at, (i + 1) * sizeof(ProgramHeader));
    if (!at)
      return bad_elf(fmt::format("truncated: program header {} lies beyond the file's {} bytes", i, view.size()));
    const auto p = *ByteView{*at}.read<ProgramHeader>(i * sizeof(ProgramHeader));
    if (p.p_type != PT_LOAD || p.p_memsz == 0) continue;
    const Segment segment{.offset = p.p_offset, .to = p.p_paddr, .file_bytes = p.p_filesz, .bytes = p.p_memsz};
    if (segment.file_bytes > segment.bytes)
      return bad_elf(fmt::format("a segment has more bytes in the file ({}) than in memory ({})", segment.file_bytes,
                                 segment.bytes));
    if (!view.slice(segment.offset, segment.file_bytes))
      return bad_elf(fmt::format("truncated: a segment needs {} bytes at file offset {:#x}, the file has {}",
                                 segment.file_bytes, segment.offset, view.size()));
    VMM_TRY(check_place(memory, segment, Elf::taken()));
    segments.push_back(segment);
  }
  std::ranges::sort(segments, {}, &Segment::to);
  for (std::size_t i = 1; i < segments.size(); ++i)
    if (segments[i].to - segments[i - 1].to < segments[i - 1].bytes)
      return bad_elf(fmt::format("the segments at {:#x} and {:#x} overlap", segments[i - 1].to, segments[i].to));
  return segments;
}

template <class Elf>
Result<LoadedElf> load(const GuestMemory& memory, const ByteView& view) {
  VMM_ASSIGN(const ElfHeader header, check_header<Elf>(view));
  VMM_ASSIGN(const auto segments, check_segments<Elf>(memory, view, header));
  const auto holds_entry = [&](const Segment& segment) { return header.entry - segment.to < segment.bytes; };
  if (std::ranges::none_of(segments, holds_entry))
    return bad_elf(fmt::format("its entry point {:#x} is in none of the {} segments that are loaded", header.entry,
                               segments.size()));
  for (const Segment& segment : segments)
    VMM_ASSERT(memory.write(vpmu::GuestPhysical{segment.to}, *view.slice(segment.offset, segment.file_bytes)));
  const Segment& last = segments.back();
  return LoadedElf{.entry = vpmu::GuestPhysical{header.entry}, .end = vpmu::GuestPhysical{last.to + last.bytes}};
}

}  // namespace

bool is_elf_image(std::span<const std::byte> file) {
  return file.size() >= SELFMAG && std::memcmp(file.data(), ELFMAG, SELFMAG) == 0;
}

Result<LoadedElf> load_elf(const GuestMemory& memory, std::span<const std::byte> file, ElfClass which) {
  const ByteView view{file};
  if (!is_elf_image(file)) return bad_elf(fmt::format("its {} bytes are too few for an ELF header", file.size()));
  return which == ElfClass::bits64 ? load<Elf64>(memory, view) : load<Elf32>(memory, view);
}

}  // namespace vmm
