#include "boot/linux_image.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "boot/image_file.hpp"
#include "boot/layout.hpp"
#include "fakes/sizes.hpp"

namespace vmm {
namespace {

using test::mib;
using test::small_bzimage;
using vpmu::GuestPhysical;

GuestMemory guest_memory_of(std::uint64_t bytes) { return *GuestMemory::create(bytes); }

/// The message of a failed parse.
std::string refusal(const test::ImageFile& file) {
  const auto header = parse_linux_header(file.bytes());
  if (header) {
    return "accepted";
  }
  EXPECT_EQ(header.error().kind, ErrorKind::usage);
  EXPECT_FALSE(header.error().advice.empty());
  return header.error().what;
}

TEST(LinuxHeader, OfAGoodImageIsUnderstood) {
  const auto file = small_bzimage();
  const auto header = parse_linux_header(file.bytes());
  ASSERT_TRUE(header) << describe(header.error());
  EXPECT_EQ(header->code_offset, 3U * 512);
  EXPECT_EQ(header->code_bytes, 4096U);
  EXPECT_EQ(header->preferred_address, 0x1000000U);
  EXPECT_EQ(header->alignment, 0x200000U);
}

TEST(LinuxHeader, EachDefectIsNamed) {
  EXPECT_NE(refusal(test::ImageFile{100}).find("100 bytes are too short"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint16_t>(0x1FE, 0x1234)).find("0x1234"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint32_t>(0x202, 0)).find("HdrS"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint16_t>(0x206, 0x204)).find("2.04"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint16_t>(0x236, 0)).find("64-bit entry"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint8_t>(0x211, 0)).find("64-bit entry"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().resize(5000)).find("truncated: the header promises 5632 bytes, the file has 5000"),
            std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint32_t>(0x1F4, 0xFFFFFFFF)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint32_t>(0x260, 16)).find("impossible values"), std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint32_t>(0x1F4, 0x20))
                .find("512 bytes of code end before the entry point at 512"),
            std::string::npos);
  EXPECT_NE(refusal(small_bzimage().put<std::uint8_t>(0x201, 2)).find("impossible values"), std::string::npos);
}

TEST(LinuxHeader, NoByteValueCrashesTheParser) {
  // Every byte of the header with three values each: whatever the result, nothing may be read outside the file.
  for (std::size_t at = 0x1F1; at < 0x270; ++at) {
    for (const auto value : std::initializer_list<std::uint8_t>{0x00, 0x7F, 0xFF}) {
      const auto file = small_bzimage().put(at, value);
      const auto header = parse_linux_header(file.bytes());
      if (header) {
        EXPECT_LE(header->code_offset + header->code_bytes, file.bytes().size());
      }
    }
  }
}

TEST(LoadLinux, PutsCodeCommandLineAndInitrdWhereTheZeroPageSays) {
  const auto memory = guest_memory_of(64 * mib);
  const auto kernel = small_bzimage();
  const std::vector<std::byte> initrd(5000, std::byte{0x5A});
  const auto loaded = load_linux(memory, kernel.bytes(), initrd, "console=ttyS0", GuestPhysical{0xE0000});
  ASSERT_TRUE(loaded) << describe(loaded.error());
  EXPECT_EQ(loaded->entry, GuestPhysical{0x1000200});
  EXPECT_EQ(memory.load<std::uint32_t>(GuestPhysical{0x1000000}), 0xC0DEC0DEU);

  const auto zero_page = layout::zero_page;
  EXPECT_EQ(memory.load<std::uint32_t>(zero_page + 0x228), layout::command_line.value());
  std::array<std::byte, 14> line{};
  ASSERT_TRUE(memory.read(layout::command_line, line));
  EXPECT_STREQ(reinterpret_cast<const char*>(line.data()), "console=ttyS0");
  EXPECT_EQ(memory.load<std::uint32_t>(zero_page + 0x21C), 5000U);
  const GuestPhysical initrd_at{*memory.load<std::uint32_t>(zero_page + 0x218)};
  EXPECT_EQ(initrd_at.value() % vpmu::page_size, 0U);
  EXPECT_EQ(memory.load<std::uint8_t>(initrd_at + 4999), 0x5AU);
  EXPECT_EQ(memory.load<std::uint64_t>(zero_page + 0x70), 0xE0000U);
}

TEST(LoadLinux, MemoryMapHasEveryRangeOnceAndReservesTheBiosArea) {
  const auto memory = guest_memory_of(3072 * mib + 64 * mib);
  ASSERT_TRUE(load_linux(memory, small_bzimage().bytes(), {}, "", GuestPhysical{0}));
  const auto zero_page = layout::zero_page;
  ASSERT_EQ(memory.load<std::uint8_t>(zero_page + 0x1E8), 4U);
  const auto word = [&](unsigned entry, unsigned offset) {
    std::array<std::byte, 8> bytes{};
    EXPECT_TRUE(memory.read(zero_page + 0x2D0 + entry * 20 + offset, bytes));
    return std::bit_cast<std::uint64_t>(bytes);
  };
  EXPECT_EQ(word(0, 0), 0U);
  EXPECT_EQ(word(1, 0), layout::low_ram_end.value());
  EXPECT_EQ(word(1, 16) & 0xFF, 2U);
  EXPECT_EQ(word(2, 0), mib);
  EXPECT_EQ(word(2, 8), 3071 * mib);
  EXPECT_EQ(word(3, 0), 4096 * mib);
  EXPECT_EQ(word(3, 8), 64 * mib);
}

TEST(LoadLinux, WhatDoesNotFitIsAUsageError) {
  const auto memory = guest_memory_of(32 * mib);
  const std::vector<std::byte> large(31 * mib);
  const auto initrd = load_linux(memory, small_bzimage().bytes(), large, "", GuestPhysical{0});
  ASSERT_FALSE(initrd);
  EXPECT_EQ(initrd.error().what, "the initrd of 31 MiB does not fit beside the kernel in 32 MiB of memory");

  const auto kernel = small_bzimage().put<std::uint32_t>(0x260, 0x40000000);
  const auto too_large = load_linux(memory, kernel.bytes(), {}, "", GuestPhysical{0});
  ASSERT_FALSE(too_large);
  EXPECT_NE(too_large.error().what.find("the kernel needs 1024 MiB"), std::string::npos) << too_large.error().what;

  const auto line = load_linux(memory, small_bzimage().bytes(), {}, std::string(2048, 'x'), GuestPhysical{0});
  ASSERT_FALSE(line);
  EXPECT_NE(line.error().what.find("2048 characters"), std::string::npos) << line.error().what;
}

TEST(LoadLinux, ARelocatableKernelMovesWhereThereIsRoom) {
  const auto memory = guest_memory_of(16 * mib);
  const auto loaded = load_linux(memory, small_bzimage().bytes(), {}, "", GuestPhysical{0});
  ASSERT_TRUE(loaded) << describe(loaded.error());
  EXPECT_EQ(loaded->entry, GuestPhysical{0x200200});
  EXPECT_FALSE(load_linux(memory, small_bzimage().put<std::uint8_t>(0x234, 0).bytes(), {}, "", GuestPhysical{0}));
}

}  // namespace
}  // namespace vmm
