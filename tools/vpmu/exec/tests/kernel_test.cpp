#include "exec/kernel.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "snapshot/checksum.hpp"

namespace vmm::tool {
namespace {

/// A bzImage's header with this text at 200H + `pointer`.
std::vector<std::byte> image_with(std::string_view version, std::uint16_t pointer = 0x100) {
  std::vector<std::byte> file(0x1000);
  const std::uint16_t boot_flag = 0xAA55;
  std::memcpy(&file[0x1FE], &boot_flag, sizeof boot_flag);
  std::memcpy(&file[0x202], "HdrS", 4);
  std::memcpy(&file[0x20E], &pointer, sizeof pointer);
  if (0x200U + pointer + version.size() <= file.size())
    std::memcpy(&file[0x200U + pointer], version.data(), version.size());
  return file;
}

TEST(KernelVersion, IsTheFirstWordOfTheHeadersText) {
  EXPECT_EQ(kernel_version(image_with("6.1.0-56-cloud-amd64 (builder@host) #1 SMP")).value(), "6.1.0-56-cloud-amd64");
  EXPECT_EQ(kernel_version(image_with("6.12.0+")).value(), "6.12.0+");
  EXPECT_EQ(kernel_version(image_with(std::string(64, 'x') + " ")).value(), std::string(64, 'x'));
}

TEST(KernelVersion, IsRefusedWhereThereIsNone) {
  EXPECT_FALSE(kernel_version({}));
  EXPECT_FALSE(kernel_version(std::vector<std::byte>(0x1000)));
  EXPECT_FALSE(kernel_version(image_with("6.1", 0)));
  EXPECT_FALSE(kernel_version(image_with("6.1", 0xFFFF)));
  for (const char* const text : {"", " 6.1", "../../6.1", ".", "6.1/x", "6\x01", "6\xFF"})
    EXPECT_FALSE(kernel_version(image_with(text))) << text;
  EXPECT_FALSE(kernel_version(image_with(std::string(65, 'x'))));
}

// Of a file that is read in several pieces.
TEST(KernelFile, IsKnownByItsVersionAndAllOfItsContent) {
  std::vector<std::byte> image = image_with("6.1 (a@b)");
  image.resize(700'000);
  const auto write = [&image](const std::string& path) {
    std::ofstream{path, std::ios::binary}.write(reinterpret_cast<const char*>(image.data()),
                                                static_cast<std::streamsize>(image.size()));
    return path;
  };
  const std::string directory = testing::TempDir();
  const auto whole = look_at_kernel(write(directory + "kernel_a"));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->version, "6.1");
  Checksum checksum;
  checksum.add(image);
  EXPECT_EQ(whole->checksum, checksum.value());
  image.back() = std::byte{1};
  const auto other = look_at_kernel(write(directory + "kernel_b"));
  ASSERT_TRUE(other);
  EXPECT_NE(other->checksum, whole->checksum);
  image.assign(0x1000, std::byte{});
  const auto none = look_at_kernel(write(directory + "kernel_c"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::usage);
  EXPECT_FALSE(look_at_kernel("/no/such/kernel"));
}

TEST(FetchedFiles, AreThoseOfTheTreeOrOfThisHost) {
  EXPECT_EQ(fetched_files("/home/ada/vpmu/build/dev/tools/vpmu/vpmu"), "/home/ada/vpmu/build/cache");
  for (const char* const installed :
       {"/usr/bin/vpmu", "/opt/build/bin/vpmu", "/tmp/other/dev/tools/vpmu/vpmu", "vpmu", ""})
    EXPECT_EQ(fetched_files(installed), "/var/cache/vpmu") << installed;
}

TEST(FindKernel, TakesTheFirstThatCanBeRead) {
  EXPECT_EQ(find_kernel({.given = "/no/such", .running = "/dev/null", .fetched = "/dev/null"}).value(), "/no/such");
  EXPECT_EQ(find_kernel({.running = "/dev/null", .fetched = "/dev/zero"}).value(), "/dev/null");
  EXPECT_EQ(find_kernel({.running = "/no/such", .fetched = "/dev/zero"}).value(), "/dev/zero");
}

TEST(FindKernel, NamesAllPlacesAndWhatToDo) {
  const auto none = find_kernel({.running = "/no/running", .fetched = "/no/fetched"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().what,
            "no kernel for the guest: --kernel is not given, and neither /no/running nor /no/fetched can be read");
  EXPECT_EQ(none.error().advice,
            "give a bzImage with --kernel, make this host's readable, or run tools/dev/bed/fetch guest");
}

}  // namespace
}  // namespace vmm::tool
