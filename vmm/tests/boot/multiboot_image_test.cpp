#include "boot/multiboot_image.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "boot/image_file.hpp"
#include "boot/layout.hpp"
#include "fakes/sizes.hpp"

// Multiboot Specification 0.6.96.

namespace vmm {
namespace {

using test::mib;
using vpmu::GuestPhysical;

constexpr std::size_t kernel_contents_at = 0x1000;
constexpr std::uint32_t contents = 0x11223344, to = 2 * mib;

struct Header {
  std::size_t at{kernel_contents_at};
  std::uint32_t magic{0x1BADB002}, flags{}, checksum{};  ///< Added to the right checksum.
  std::uint32_t to{vmm::to};
};

/// An ELF file of one segment, with the multiboot header at `header.at`; by default at the segment's start.
test::ImageFile kernel_file(const Header& header = {}) {
  Elf32_Ehdr elf{};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_CLASS] = ELFCLASS32;
  elf.e_type = ET_EXEC;
  elf.e_machine = EM_386;
  elf.e_entry = header.to + 0x10;
  elf.e_phoff = sizeof elf;
  elf.e_phentsize = sizeof(Elf32_Phdr);
  elf.e_phnum = 1;
  Elf32_Phdr segment{};
  segment.p_type = PT_LOAD;
  segment.p_offset = kernel_contents_at;
  segment.p_paddr = header.to;
  segment.p_filesz = 0x20;
  segment.p_memsz = 0x1800;
  test::ImageFile file{std::max(kernel_contents_at, header.at) + 0x20};
  file.put(0, elf).put(sizeof elf, segment).put(kernel_contents_at + 0x10, contents);
  file.put(header.at, header.magic)
      .put(header.at + 4, header.flags)
      .put(header.at + 8, 0U - header.magic - header.flags + header.checksum);
  return file;
}

class Multiboot : public testing::Test {
 protected:
  Result<LoadedMultiboot> load(const test::ImageFile& file, std::size_t module_bytes = 0,
                               const std::string& line = "") {
    const std::vector<std::byte> module(module_bytes, std::byte{0x5A});
    return load_multiboot(memory_, file.bytes(), module, line);
  }
  std::string refusal(const test::ImageFile& file, std::size_t module_bytes = 0, const std::string& line = "") {
    const auto loaded = load(file, module_bytes, line);
    return loaded ? "accepted" : describe(loaded.error());
  }
  [[nodiscard]] std::uint32_t word(std::uint64_t at) const {
    return memory_.load<std::uint32_t>(GuestPhysical{at}).value();
  }
  [[nodiscard]] std::string text(std::uint64_t at, std::size_t size) const {
    std::string read(size, 0);
    EXPECT_TRUE(memory_.read(GuestPhysical{at}, std::as_writable_bytes(std::span{read})));
    return read;
  }

  GuestMemory memory_{*GuestMemory::create(16 * mib)};
};

// 3.1.1: all of it in the first 8192 bytes, at a multiple of four.
TEST_F(Multiboot, TheHeaderIsFoundWhereTheSpecificationSays) {
  for (const std::size_t at : {kernel_contents_at, kernel_contents_at + 4, std::size_t{8192 - 12}})
    EXPECT_TRUE(is_multiboot_image(kernel_file({.at = at}).bytes())) << at;
  for (const std::size_t at : {kernel_contents_at + 2, std::size_t{8192 - 8}, std::size_t{8192}})
    EXPECT_FALSE(is_multiboot_image(kernel_file({.at = at}).bytes())) << at;
  EXPECT_FALSE(is_multiboot_image(kernel_file({.checksum = 1}).bytes()));
  EXPECT_FALSE(is_multiboot_image(kernel_file({.magic = 0x2BADB002}).bytes()));
  EXPECT_FALSE(is_multiboot_image({}));
  EXPECT_FALSE(is_multiboot_image(test::small_bzimage().bytes()));
  EXPECT_FALSE(is_multiboot_image(kernel_file().resize(kernel_contents_at + 11).bytes()));
}

// 3.3.
TEST_F(Multiboot, PlacesTheKernelAndTellsItOfTheMachine) {
  const auto loaded = load(kernel_file(), 0, "one two");
  ASSERT_TRUE(loaded) << describe(loaded.error());
  EXPECT_EQ(loaded->entry, GuestPhysical{to + 0x10});
  EXPECT_EQ(word(to + 0x10), contents);
  const std::uint64_t info = loaded->info.value();
  EXPECT_EQ(word(info), 1U | 4U | 64U | 512U) << "memory, command line, map, name";
  EXPECT_EQ(word(info + 4), 0x9F000U / 1024);
  EXPECT_EQ(word(info + 8), 15 * 1024U);
  EXPECT_EQ(text(word(info + 16), 8), std::string("one two\0", 8));
  ASSERT_EQ(word(info + 44), 2 * 24U);
  const std::uint64_t map = word(info + 48);
  EXPECT_EQ(word(map), 20U);
  EXPECT_EQ(word(map + 4), 0U);
  EXPECT_EQ(word(map + 12), 0x9F000U);
  EXPECT_EQ(word(map + 20), 1U);
  EXPECT_EQ(word(map + 24 + 4), mib);
  EXPECT_EQ(word(map + 24 + 12), 15 * mib);
  EXPECT_EQ(text(word(info + 64), 5), std::string("vpmu\0", 5));
}

TEST_F(Multiboot, PlacesTheModuleBehindTheKernelsLastPage) {
  const auto loaded = load(kernel_file({.flags = 3}), 5000, "line");
  ASSERT_TRUE(loaded) << describe(loaded.error());
  const std::uint64_t info = loaded->info.value();
  EXPECT_EQ(word(info) & 8, 8U);
  EXPECT_EQ(word(info + 20), 1U);
  const std::uint64_t module = word(info + 24);
  EXPECT_EQ(word(module), to + 0x2000);
  EXPECT_EQ(word(module + 4), to + 0x2000 + 5000);
  EXPECT_EQ(text(word(module + 8), 1), std::string(1, 0)) << "it has no name";
  EXPECT_EQ(text(to + 0x2000, 5000), std::string(5000, 0x5A));
}

TEST_F(Multiboot, AKernelBelow1MibHasItsModuleAbove) {
  const auto loaded = load(kernel_file({.to = 0x8000}), 5000);
  ASSERT_TRUE(loaded) << describe(loaded.error());
  EXPECT_EQ(loaded->entry.value(), 0x8010U);
  EXPECT_EQ(word(0x8010), contents);
  EXPECT_EQ(word(word(loaded->info.value() + 24)), mib) << "the module";
  EXPECT_NE(refusal(kernel_file({.to = 0x2800})).find("lies on the multiboot information at 0x1000"),
            std::string::npos);
  EXPECT_NE(refusal(kernel_file({.to = 0x1F000})).find("lies on the command line at 0x20000"), std::string::npos);
}

TEST_F(Multiboot, RefusesWhatItCannotDo) {
  EXPECT_NE(refusal(kernel_file({.checksum = 1})).find("no multiboot header in its first 8 KiB"), std::string::npos);
  EXPECT_NE(refusal(kernel_file({.flags = 1U << 16U})).find("only ELF files"), std::string::npos);
  EXPECT_NE(refusal(kernel_file({.flags = 4})).find("requires more than the memory map: flags 0x4"), std::string::npos);
  auto elf64 = kernel_file();
  elf64.put<std::uint8_t>(EI_CLASS, ELFCLASS64);
  EXPECT_NE(refusal(elf64).find("ELF class 2, machine 3, type 2 is not a static i386 executable"), std::string::npos);
  EXPECT_NE(refusal(kernel_file(), 14 * mib).find("14680064 bytes does not fit after the kernel"), std::string::npos);
  EXPECT_EQ(refusal(kernel_file(), 14 * mib - 0x2000), "accepted");
  EXPECT_NE(refusal(kernel_file(), 0, std::string(65536, 'x')).find("65536 bytes, more than 65535"), std::string::npos);
  EXPECT_EQ(refusal(kernel_file(), 0, std::string(65535, 'x')), "accepted");
}

}  // namespace
}  // namespace vmm
