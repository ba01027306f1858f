#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "boot/elf_image.hpp"
#include "boot/layout.hpp"
#include "fuzz_input.hpp"

// Random bytes as an ELF kernel: as they are, or as the segments of a file whose header is good. What is loaded lies in
// RAM above 1 MiB and is what the file has; what is refused has left the RAM alone, and says why in one line.

namespace {

using namespace vmm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

constexpr std::uint64_t ram_bytes = GuestMemory::least;
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

/// In memory or close to its ends, mostly.
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

File with_good_header(Input& input) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_type = ET_EXEC;
  header.e_machine = EM_X86_64;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = static_cast<std::uint16_t>(1 + input.take<std::uint8_t>() % 8);
  File file(sizeof header + header.e_phnum * sizeof(Elf64_Phdr) + input.take<std::uint8_t>());
  for (std::size_t at = sizeof header; at < file.size(); ++at) file[at] = static_cast<std::byte>(at);
  header.e_entry = take_place(input);
  put(file, 0, header);
  for (std::uint16_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    segment.p_type = input.take<std::uint8_t>() % 8 == 7 ? PT_NOTE : PT_LOAD;
    segment.p_offset = input.take<std::uint8_t>();
    segment.p_filesz = input.take<std::uint8_t>();
    segment.p_memsz =
        segment.p_filesz + (input.take<std::uint8_t>() % 4 == 3 ? take_place(input) : input.take<std::uint8_t>());
    segment.p_paddr = take_place(input);
    if (i == 0) header.e_entry = segment.p_paddr;
    put(file, sizeof header + i * sizeof segment, segment);
  }
  if (input.take<std::uint8_t>() % 4 != 3) put(file, 0, header);
  return file;
}

/// Every segment is in memory as in the file, and is taken away again.
void check_and_clear(const GuestMemory& memory, const File& file) {
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  for (std::uint16_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, file.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0) continue;
    const auto there = memory.bytes_at(vpmu::GuestPhysical{segment.p_paddr}, segment.p_memsz);
    require(there.size() == segment.p_memsz && segment.p_paddr >= layout::high_ram.value(),
            "a segment lies in RAM above 1 MiB");
    const auto from_file = there.first(segment.p_filesz);
    require(
        std::equal(from_file.begin(), from_file.end(), file.begin() + static_cast<std::ptrdiff_t>(segment.p_offset)),
        "a segment is what the file has");
    std::ranges::fill(from_file, std::byte{});
    ++segments_loaded;
  }
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return segments_loaded; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const GuestMemory& memory = fresh_memory();
  Input input{data, size};
  const bool as_it_is = input.take<std::uint8_t>() % 2 == 0;
  const auto rest = std::as_bytes(std::span{data, size}).subspan(std::min<std::size_t>(size, 1));
  const File file = as_it_is ? File{rest.begin(), rest.end()} : with_good_header(input);
  const auto entry = load_elf(memory, file);
  if (entry) {
    require(*entry >= layout::high_ram && !memory.bytes_at(*entry, 1).empty(), "the entry point is in RAM");
    check_and_clear(memory, file);
  } else {
    require(entry.error().kind == ErrorKind::usage && describe(entry.error()).find('\n') == std::string::npos,
            "a refusal is the user's, and one line");
    const auto first = memory.bytes_at(layout::high_ram, vpmu::page_size);
    require(std::ranges::all_of(first, [](std::byte b) { return b == std::byte{}; }), "what is refused writes nothing");
  }
  return 0;
}
