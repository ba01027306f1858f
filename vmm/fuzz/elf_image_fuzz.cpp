#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "boot/elf_image.hpp"
#include "boot/layout.hpp"
#include "boot/multiboot_image.hpp"
#include "fuzz_input.hpp"

// Random bytes as an ELF or multiboot kernel: as they are, or as the segments of a file whose header is good. A loaded
// kernel must lie in RAM and equal the file; a refused one must leave RAM unchanged, with the reason in one
// line.

namespace {

using namespace vmm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

constexpr std::uint64_t ram_bytes = GuestMemory::min_bytes;
std::uint64_t segments_loaded = 0;

const GuestMemory& fresh_memory() {
  static const GuestMemory memory = *GuestMemory::create(ram_bytes);
  return memory;
}

using File = std::vector<std::byte>;

template <class T>
void put(File& file, std::size_t at, const T& value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

/// An address that is mostly in memory or close to its ends.
std::uint64_t take_place(Input& input) {
  const auto form = input.take<std::uint8_t>();
  const std::uint64_t near = input.take<std::uint16_t>();
  switch (form % 4) {
    case 0: return layout::high_ram.value() + near;
    case 1: return ram_bytes - near;
    case 2: return near << (form >> 2U);
    default: return input.take<std::uint64_t>();
  }
}

struct Elf64 {
  using FileHeader = Elf64_Ehdr;
  using ProgramHeader = Elf64_Phdr;
  static constexpr unsigned char of_class = ELFCLASS64;
  static constexpr unsigned short machine = EM_X86_64;
};
struct Elf32 {
  using FileHeader = Elf32_Ehdr;
  using ProgramHeader = Elf32_Phdr;
  static constexpr unsigned char of_class = ELFCLASS32;
  static constexpr unsigned short machine = EM_386;
};

template <class Elf>
File with_good_header(Input& input) {
  using ProgramHeader = typename Elf::ProgramHeader;
  typename Elf::FileHeader header{};
  using Word = decltype(header.e_entry);
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = Elf::of_class;
  header.e_type = ET_EXEC;
  header.e_machine = Elf::machine;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(ProgramHeader);
  header.e_phnum = static_cast<std::uint16_t>(1 + input.take<std::uint8_t>() % 8);
  File file(sizeof header + header.e_phnum * sizeof(ProgramHeader) + input.take<std::uint8_t>());
  for (std::size_t at = sizeof header; at < file.size(); ++at) file[at] = static_cast<std::byte>(at);
  header.e_entry = static_cast<Word>(take_place(input));
  put(file, 0, header);
  for (std::uint16_t i = 0; i < header.e_phnum; ++i) {
    ProgramHeader segment{};
    segment.p_type = input.take<std::uint8_t>() % 8 == 7 ? PT_NOTE : PT_LOAD;
    segment.p_offset = input.take<std::uint8_t>();
    segment.p_filesz = input.take<std::uint8_t>();
    segment.p_memsz = static_cast<Word>(
        segment.p_filesz + (input.take<std::uint8_t>() % 4 == 3 ? take_place(input) : input.take<std::uint8_t>()));
    segment.p_paddr = static_cast<Word>(take_place(input));
    if (i == 0) header.e_entry = segment.p_paddr;
    put(file, sizeof header + i * sizeof segment, segment);
  }
  if (input.take<std::uint8_t>() % 4 != 3) put(file, 0, header);
  return file;
}

File with_multiboot_header(Input& input) {
  constexpr std::uint32_t magic = 0x1BADB002, few_flags = 3;
  File file = with_good_header<Elf32>(input);
  const auto form = input.take<std::uint32_t>();
  const std::uint32_t flags = form % 4 == 3 ? form >> 2U : form >> 2U & few_flags;
  while (file.size() % 4 != 0) file.push_back({});
  for (const std::uint32_t word : {magic, flags, 0U - magic - flags}) {
    file.resize(file.size() + sizeof word);
    put(file, file.size() - sizeof word, word);
  }
  return file;
}

/// Whether these bytes are not in the gap below 1 MiB.
bool is_ram(vpmu::GuestPhysical first, std::uint64_t bytes) {
  return first >= layout::high_ram || first.value() + bytes <= layout::low_ram_end.value();
}

/// Checks that every segment is in memory as in the file, and clears it again.
template <class Elf>
void check_and_clear(const GuestMemory& memory, const File& file) {
  typename Elf::FileHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  for (std::uint16_t i = 0; i < header.e_phnum; ++i) {
    typename Elf::ProgramHeader segment;
    std::memcpy(&segment, file.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0) continue;
    const auto there = memory.bytes_at(vpmu::GuestPhysical{segment.p_paddr}, segment.p_memsz);
    require(there.size() == segment.p_memsz && is_ram(vpmu::GuestPhysical{segment.p_paddr}, segment.p_memsz),
            "a segment lies in RAM");
    const auto from_file = there.first(segment.p_filesz);
    require(
        std::equal(from_file.begin(), from_file.end(), file.begin() + static_cast<std::ptrdiff_t>(segment.p_offset)),
        "a segment is what the file has");
    std::ranges::fill(from_file, std::byte{});
    ++segments_loaded;
  }
}

void check_refusal(const GuestMemory& memory, const Error& error) {
  require(error.kind == ErrorKind::usage && describe(error).find('\n') == std::string::npos,
          "a refusal is the user's, and one line");
  const auto first = memory.bytes_at(layout::high_ram, vpmu::page_size);
  require(std::ranges::all_of(first, [](std::byte b) { return b == std::byte{}; }), "what is refused writes nothing");
}

void try_elf(const GuestMemory& memory, const File& file) {
  const auto loaded = load_elf(memory, file);
  if (!loaded) return check_refusal(memory, loaded.error());
  require(is_ram(loaded->entry, 1) && !memory.bytes_at(loaded->entry, 1).empty(), "the entry point is in RAM");
  check_and_clear<Elf64>(memory, file);
}

void try_multiboot(const GuestMemory& memory, const File& file, std::size_t module_bytes) {
  if (!is_multiboot_image(file)) return;
  const File module(module_bytes, std::byte{0x5A});
  const auto loaded = load_multiboot(memory, file, module, "line");
  const bool has_no_room = !loaded && describe(loaded.error()).find("after the kernel") != std::string::npos;
  if (!loaded && !has_no_room) return check_refusal(memory, loaded.error());
  if (loaded) {
    constexpr std::uint64_t has_modules = 8, module_list_at = 24;
    const auto word = [&](std::uint64_t at) { return memory.load<std::uint32_t>(vpmu::GuestPhysical{at}).value(); };
    const std::uint64_t info = loaded->info.value();
    require(((word(info) & has_modules) != 0) == !module.empty(), "it is told of a module");
    if (!module.empty()) {
      const auto there = memory.bytes_at(vpmu::GuestPhysical{word(word(info + module_list_at))}, module_bytes);
      require(std::ranges::equal(there, module), "and finds it");
      std::ranges::fill(there, std::byte{});
    }
  }
  check_and_clear<Elf32>(memory, file);
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return segments_loaded; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const GuestMemory& memory = fresh_memory();
  Input input{data, size};
  const auto form = input.take<std::uint8_t>();
  const auto rest = std::as_bytes(std::span{data, size}).subspan(std::min<std::size_t>(size, 1));
  const std::size_t module_bytes = form >> 2U;
  switch (form % 4) {
    case 1: try_elf(memory, with_good_header<Elf64>(input)); break;
    case 3: try_multiboot(memory, with_multiboot_header(input), module_bytes); break;
    default:
      const File file{rest.begin(), rest.end()};
      try_elf(memory, file);
      try_multiboot(memory, file, module_bytes);
  }
  return 0;
}
