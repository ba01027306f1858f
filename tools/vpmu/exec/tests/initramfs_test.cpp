#include "exec/initramfs.hpp"

#include <gtest/gtest.h>

#include <charconv>
#include <cstring>
#include <map>

namespace vmm::tool {
namespace {

struct Entry {
  std::uint32_t mode{}, major{}, minor{};
  std::string content;
  bool operator==(const Entry&) const = default;
};

/// The archive as the kernel's init/initramfs.c reads it: 13 fields of 8 hexadecimal digits.
std::map<std::string, Entry> unpack(std::span<const std::byte> bytes) {
  std::map<std::string, Entry> entries;
  const std::string_view archive{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  const auto aligned = [](std::size_t place) { return (place + 3) / 4 * 4; };
  for (std::size_t place = 0; place < archive.size();) {
    EXPECT_EQ(archive.substr(place, 6), "070701");
    const auto field = [&](std::size_t index) {
      std::uint32_t value = 0;
      const char* const digits = archive.data() + place + 6 + 8 * index;
      EXPECT_EQ(std::from_chars(digits, digits + 8, value, 16).ptr, digits + 8);
      return value;
    };
    const std::string name{archive.substr(place + 110, field(11) - 1)};
    EXPECT_EQ(archive[place + 110 + field(11) - 1], '\0');
    const std::size_t content = aligned(place + 110 + field(11));
    entries[name] = {field(1), field(9), field(10), std::string{archive.substr(content, field(6))}};
    place = aligned(content + field(6));
    EXPECT_EQ(name == "TRAILER!!!", place == archive.size());
  }
  return entries;
}

std::vector<std::byte> archive_bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

TEST(CpioArchive, HasEachEntryAligned) {
  for (const char* const content : {"", "1", "12", "123", "1234", "12345"}) {
    CpioArchive archive;
    archive.add_directory("dev", 0755);
    archive.add_character_device("dev/console", 0600, 5, 1);
    archive.add_file("file", 0644, archive_bytes_of(content));
    const std::map<std::string, Entry> expected{{"dev", {040755, 0, 0, ""}},
                                                {"dev/console", {020600, 5, 1, ""}},
                                                {"file", {0100644, 0, 0, content}},
                                                {"TRAILER!!!", {}}};
    EXPECT_EQ(unpack(archive.take()), expected) << content;
  }
}

ExecModules some_modules() {
  ExecModules modules;
  modules.first.push_back({"fuse", archive_bytes_of("one")});
  modules.first.push_back({"virtiofs", archive_bytes_of("two")});
  modules.later.push_back({"virtio_blk", archive_bytes_of("three")});
  return modules;
}

TEST(ExecInitramfs, HasInitAndTheModules) {
  const auto archive = make_exec_initramfs(some_modules());
  ASSERT_TRUE(archive);
  const auto entries = unpack(*archive);
  EXPECT_EQ(entries.at("modules/fuse.ko").content, "one");
  EXPECT_EQ(entries.at("modules/virtiofs.ko").content, "two");
  EXPECT_EQ(entries.at("modules/virtio_blk.ko").content, "three");
  EXPECT_EQ(entries.at(exec_module_list).content, "fuse.ko\nvirtiofs.ko\n");
  EXPECT_EQ(entries.at("init").mode, 0100755U);
  EXPECT_EQ(entries.at("init").content.substr(0, 4), "\177ELF");
  EXPECT_FALSE(entries.contains(exec_request_file));
}

TEST(ExecInitramfs, HasTheRequestIfThereIsOne) {
  const ExecRequest request{.arguments = {"true"}, .modules = {"virtio_blk.ko"}};
  const auto archive = make_exec_initramfs(some_modules(), &request);
  ASSERT_TRUE(archive);
  const auto read = read_request(unpack(*archive).at(exec_request_file).content);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, request);
}

TEST(ExecInitramfs, IsTheSameForTheSameModules) {
  EXPECT_EQ(make_exec_initramfs(some_modules()).value(), make_exec_initramfs(some_modules()).value());
}

TEST(ExecInitramfs, FailsForARequestThatCannotBeWritten) {
  const ExecRequest nothing;
  EXPECT_FALSE(make_exec_initramfs({}, &nothing));
}

}  // namespace
}  // namespace vmm::tool
