#include "boot/elf_image.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <string>

#include "boot/image_file.hpp"

namespace vmm {
namespace {

using vpmu::GuestPhysical;

constexpr std::uint64_t mib = 1ULL << 20U;
constexpr std::size_t contents_at = 0x1000;

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
  segment.p_offset = contents_at;
  segment.p_paddr = 2 * mib;
  segment.p_filesz = 16;
  segment.p_memsz = 64;
  return segment;
}

test::ImageFile elf_file(const Elf64_Ehdr& header, const Elf64_Phdr& segment) {
  test::ImageFile file{contents_at + 16};
  file.put(0, header).put(sizeof header, segment).put<std::uint64_t>(contents_at, 0x1122334455667788);
  return file;
}

std::string refusal(const Elf64_Ehdr& header, const Elf64_Phdr& segment) {
  const auto memory = GuestMemory::create(16 * mib);
  const auto file = elf_file(header, segment);
  const auto entry = load_elf(*memory, file.bytes());
  return entry ? "accepted" : entry.error().what;
}

TEST(LoadElf, CopiesSegmentsAndClearsTheirTails) {
  const auto memory = *GuestMemory::create(16 * mib);
  ASSERT_TRUE(memory.store<std::uint64_t>(GuestPhysical{2 * mib + 56}, ~0ULL));
  const auto entry = load_elf(memory, elf_file(good_header(), good_segment()).bytes());
  ASSERT_TRUE(entry) << describe(entry.error());
  EXPECT_EQ(*entry, GuestPhysical{2 * mib});
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{2 * mib}), 0x1122334455667788U);
  EXPECT_EQ(memory.load<std::uint64_t>(GuestPhysical{2 * mib + 56}), 0U);
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
  EXPECT_NE(refusal(header, good_segment()), "accepted");
  header = good_header();
  header.e_entry = 0x10;
  EXPECT_NE(refusal(header, good_segment()).find("entry point 0x10"), std::string::npos);

  auto segment = good_segment();
  segment.p_filesz = 4096;
  segment.p_memsz = 4096;
  EXPECT_NE(refusal(good_header(), segment).find("truncated"), std::string::npos);
  segment = good_segment();
  segment.p_memsz = 8;
  EXPECT_NE(refusal(good_header(), segment), "accepted");
  segment = good_segment();
  segment.p_memsz = ~0ULL;
  EXPECT_NE(refusal(good_header(), segment).find("outside the memory"), std::string::npos);
  segment = good_segment();
  segment.p_paddr = 0x7000;  // would overwrite the boot tables
  EXPECT_NE(refusal(good_header(), segment).find("outside the memory"), std::string::npos);
}

}  // namespace
}  // namespace vmm
