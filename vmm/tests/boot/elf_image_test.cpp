#include "boot/elf_image.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "boot/image_file.hpp"
#include "fakes/sizes.hpp"

namespace vmm {
namespace {

using test::mib;
using vpmu::GuestPhysical;

constexpr std::size_t segment_contents_at = 0x1000;

Elf64_Ehdr good_header() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_type = ET_EXEC;
  header.e_machine = EM_X86_64;
  header.e_entry = 2 * mib;
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  return header;
}

Elf64_Phdr good_segment() {
  Elf64_Phdr segment{};
  segment.p_type = PT_LOAD;
  segment.p_offset = segment_contents_at;
  segment.p_paddr = 2 * mib;
  segment.p_filesz = 16;
  segment.p_memsz = 64;
  return segment;
}

test::ImageFile elf_file(const Elf64_Ehdr& header, const Elf64_Phdr& segment) {
  test::ImageFile file{segment_contents_at + 16};
  file.put(0, header).put(sizeof header, segment).put<std::uint64_t>(segment_contents_at, 0x1122334455667788);
  return file;
}

std::string refusal(const Elf64_Ehdr& header, const Elf64_Phdr& segment) {
  const auto memory = GuestMemory::create(16 * mib);
  const auto file = elf_file(header, segment);
  const auto entry = load_elf(*memory, file.bytes());
  return entry ? "accepted" : entry.error().what;
}

/// A file with these segments; their contents are at `segment_contents_at`.
test::ImageFile elf_file(std::span<const Elf64_Phdr> segments) {
  auto header = good_header();
  header.e_phnum = static_cast<std::uint16_t>(segments.size());
  header.e_phoff = segment_contents_at + 16;
  test::ImageFile file{header.e_phoff + segments.size_bytes()};
  file.put(0, header);
  for (std::size_t i = 0; i < segments.size(); ++i) file.put(header.e_phoff + i * sizeof(Elf64_Phdr), segments[i]);
  return file;
}

TEST(LoadElf, CopiesSegmentsToTheirPlaces) {
  const auto memory = *GuestMemory::create(16 * mib);
  const auto entry = load_elf(memory, elf_file(good_header(), good_segment()).bytes());
  ASSERT_TRUE(entry) << describe(entry.error());
  EXPECT_EQ(entry->entry, GuestPhysical{2 * mib});
  EXPECT_EQ(entry->end, GuestPhysical{2 * mib + 64});
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{2 * mib}), 0x1122334455667788U);
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{2 * mib + 56}), 0U);
}

/// Resident memory of this process, in bytes.
std::uint64_t resident_bytes() {
  std::ifstream file{"/proc/self/statm"};
  std::uint64_t pages = 0;
  file >> pages >> pages;
  return pages * vpmu::page_size;
}

TEST(LoadElf, AHugeTailTakesNoMemoryOfTheHost) {
  const auto memory = *GuestMemory::create(3072 * mib);
  auto segment = good_segment();
  segment.p_memsz = 3000 * mib;
  const auto before = resident_bytes();
  ASSERT_TRUE(load_elf(memory, elf_file(good_header(), segment).bytes()));
  EXPECT_LT(resident_bytes(), before + 64 * mib);
}

// Sixty thousand segments for the same gigabyte once kept the loader busy for half a minute.
TEST(LoadElf, NeitherManySegmentsNorThoseOnTopOfEachOtherAreLoaded) {
  const auto memory = *GuestMemory::create(16 * mib);
  const auto refusal_of = [&](std::span<const Elf64_Phdr> segments) {
    const auto entry = load_elf(memory, elf_file(segments).bytes());
    return entry ? "accepted" : entry.error().what;
  };
  const std::vector<Elf64_Phdr> many(65535, good_segment());
  EXPECT_NE(refusal_of(many).find("65535 program headers of 56 bytes; supported are 1 to 256"), std::string::npos)
      << refusal_of(many);
  std::array segments{good_segment(), good_segment(), good_segment()};
  segments[0].p_paddr = 3 * mib;
  segments[1].p_paddr = 4 * mib;
  EXPECT_EQ(refusal_of(segments), "accepted");
  EXPECT_EQ(memory.load<std::uint8_t>(GuestPhysical{4 * mib}), 0U);
  segments[2].p_memsz = 1 * mib;
  EXPECT_EQ(refusal_of(segments), "accepted") << "side by side";
  segments[2].p_memsz = 1 * mib + 1;
  EXPECT_NE(refusal_of(segments).find("the segments at 0x200000 and 0x300000 overlap"), std::string::npos)
      << refusal_of(segments);
}

TEST(LoadElf, EachDefectIsNamed) {
  auto header = good_header();
  header.e_machine = EM_AARCH64;
  EXPECT_NE(refusal(header, good_segment()).find("machine 183"), std::string::npos);
  header = good_header();
  header.e_phnum = 100;
  header.e_phoff = 0x1000;
  EXPECT_NE(refusal(header, good_segment()).find("program header 0 lies beyond"), std::string::npos);
  header = good_header();
  header.e_phoff = ~0ULL - 8;
  EXPECT_NE(refusal(header, good_segment()).find("program header 0 lies beyond"), std::string::npos);
  header = good_header();
  header.e_entry = 0x10;
  EXPECT_NE(refusal(header, good_segment()).find("entry point 0x10 is in none of the 1 segments"), std::string::npos);
  header.e_entry = 2 * mib + 64;
  EXPECT_NE(refusal(header, good_segment()).find("entry point 0x200040"), std::string::npos)
      << "RAM, and nothing in it";

  auto segment = good_segment();
  segment.p_filesz = 4096;
  segment.p_memsz = 4096;
  EXPECT_NE(refusal(good_header(), segment).find("truncated"), std::string::npos);
  segment = good_segment();
  segment.p_memsz = 8;
  EXPECT_NE(refusal(good_header(), segment).find("more bytes in the file (16) than in memory (8)"), std::string::npos);
  segment = good_segment();
  segment.p_offset = ~0ULL - 7;
  EXPECT_NE(refusal(good_header(), segment).find("truncated"), std::string::npos) << "the end wraps";
  segment = good_segment();
  segment.p_paddr = ~0ULL - 7;
  EXPECT_NE(refusal(good_header(), segment).find("outside the memory"), std::string::npos);
  segment = good_segment();
  segment.p_type = PT_NOTE;
  EXPECT_NE(refusal(good_header(), segment).find("none of the 0 segments"), std::string::npos);
  segment = good_segment();
  segment.p_memsz = ~0ULL;
  EXPECT_NE(refusal(good_header(), segment).find("outside the memory"), std::string::npos);
  segment = good_segment();
  segment.p_paddr = 0x1E000;
  EXPECT_NE(refusal(good_header(), segment).find("lies on the page tables and the stack at 0x1000"), std::string::npos);
  segment.p_paddr = 0x9EFF0;
  EXPECT_NE(refusal(good_header(), segment).find("outside the memory: 16 MiB without 0x9f000 to 0xfffff"),
            std::string::npos);
  segment.p_paddr = 0x1F000;
  header = good_header();
  header.e_entry = segment.p_paddr;
  EXPECT_EQ(refusal(header, segment), "accepted") << "below 1 MiB, where nothing else is";
}

}  // namespace
}  // namespace vmm
