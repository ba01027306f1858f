#include "snapshot/snapshot_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace vmm::test {
namespace {

constexpr std::uint64_t ram = GuestMemory::least;

Bytes bytes_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span{text});
  return {raw.begin(), raw.end()};
}

class SnapshotFile : public testing::Test {
 protected:
  void TearDown() override {
    ::unlink(path_.c_str());
    ::unlink((path_ + ".part").c_str());
  }
  [[nodiscard]] std::string read_all() const {
    std::ifstream file{path_, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  void write_all(const std::string& text) const { std::ofstream{path_, std::ios::binary} << text; }
  /// Everything of the file; empty where both parts can be read.
  [[nodiscard]] std::string refusal() const {
    const auto image = read_snapshot(path_);
    if (!image) return describe(image.error());
    const auto memory = read_memory(path_, *GuestMemory::create(ram));
    return memory ? std::string{} : describe(memory.error());
  }

  std::string path_{testing::TempDir() + "snapshot_" + std::to_string(::getpid())};
  MachineImage image_{.model = "haswell",
                      .memory_bytes = ram,
                      .cpus = 2,
                      .threads_per_core = 1,
                      .bare_metal = true,
                      .chips = bytes_of("chips"),
                      .devices = bytes_of("devices"),
                      .vcpus = {bytes_of("first"), bytes_of("second")}};
};

TEST_F(SnapshotFile, ComesBackAsItWas) {
  const auto memory = *GuestMemory::create(ram);
  const Bytes text = bytes_of("in RAM");
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{0x5FFC}, text)) << "over the end of a page";
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{ram - text.size()}, text));
  ASSERT_TRUE(write_snapshot(path_, image_, memory));
  struct stat is {};
  ASSERT_EQ(::stat(path_.c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600U) << "what the guest has in memory is the owner's only";
  const auto image = read_snapshot(path_);
  ASSERT_TRUE(image) << describe(image.error());
  EXPECT_EQ(image->model, image_.model);
  EXPECT_EQ(image->memory_bytes, ram);
  EXPECT_EQ(image->cpus, 2U);
  EXPECT_EQ(image->threads_per_core, 1U);
  EXPECT_TRUE(image->bare_metal);
  EXPECT_EQ(image->chips, image_.chips);
  EXPECT_EQ(image->devices, image_.devices);
  EXPECT_EQ(image->vcpus, image_.vcpus);
  const auto fresh = *GuestMemory::create(ram);
  ASSERT_TRUE(read_memory(path_, fresh));
  Bytes before(ram), after(ram);
  ASSERT_TRUE(memory.read(vpmu::GuestPhysical{0}, before) && fresh.read(vpmu::GuestPhysical{0}, after));
  EXPECT_EQ(before, after);
  EXPECT_LT(read_all().size(), 4U * 4096) << "three pages are not zero";
}

TEST_F(SnapshotFile, CutAnywhereItIsRefused) {
  const auto memory = *GuestMemory::create(ram);
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{0x5000}, bytes_of("x")));
  ASSERT_TRUE(write_snapshot(path_, image_, memory));
  const std::string whole = read_all();
  EXPECT_EQ(refusal(), "");
  for (std::size_t size = 0; size < whole.size(); size += size < 300 ? 1 : 97) {
    write_all(whole.substr(0, size));
    EXPECT_NE(refusal().find("no snapshot that can be restored"), std::string::npos) << size << " bytes: " << refusal();
  }
}

TEST_F(SnapshotFile, WhatIsNoneIsRefusedWithTheReason) {
  const auto memory = *GuestMemory::create(ram);
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{0x5000}, bytes_of("x")));
  ASSERT_TRUE(write_snapshot(path_, image_, memory));
  const std::string whole = read_all();
  const auto changed = [&](std::size_t at, char value) {
    std::string other = whole;
    other[at] = value;
    write_all(other);
    return refusal();
  };
  EXPECT_NE(changed(0, '!').find("does not begin like one"), std::string::npos);
  EXPECT_NE(changed(8, 9).find("format 9"), std::string::npos);
  EXPECT_NE(changed(20, 0x7F).find("bytes of state"), std::string::npos);
  EXPECT_NE(changed(24, 100).find("not of this form"), std::string::npos) << "the model's name longer than all";
  const std::size_t page = whole.size() - 8 - 4096 - 8;
  EXPECT_NE(changed(page + 7, 1).find("is not RAM"), std::string::npos);
  ::unlink(path_.c_str());
  EXPECT_NE(refusal().find("cannot read the snapshot"), std::string::npos);
}

TEST_F(SnapshotFile, AnUnfinishedOneTakesNoName) {
  const auto memory = *GuestMemory::create(ram);
  const auto failed = write_snapshot("/dev/full/x", image_, memory);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().kind, ErrorKind::usage);
  ASSERT_EQ(::symlink("/dev/full", (path_ + ".part").c_str()), 0) << "where it writes first";
  EXPECT_FALSE(write_snapshot(path_, image_, memory));
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
  EXPECT_NE(::access((path_ + ".part").c_str(), F_OK), 0) << "and nothing is left";
}

TEST(ByteReader, MissingBytesAreZerosAndNotGood) {
  ByteWriter out;
  out.put(std::uint16_t{0x1234});
  out.put_run(bytes_of("run"));
  const Bytes bytes = out.take();
  ByteReader in{bytes};
  EXPECT_EQ(in.get<std::uint16_t>(), 0x1234);
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.get_run().size(), 3U);
  EXPECT_TRUE(in.done());
  EXPECT_EQ(in.get<std::uint32_t>(), 0U);
  EXPECT_FALSE(in.good());
  ByteReader hostile{std::span{bytes}.first(6)};
  EXPECT_TRUE(hostile.get_run().empty()) << "longer than all there is";
  EXPECT_FALSE(hostile.good());
  EXPECT_EQ(hostile.get<std::uint8_t>(), 0) << "and nothing behind it is looked at";
}

}  // namespace
}  // namespace vmm::test
