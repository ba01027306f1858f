#include "exec/disk_image.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "support/error.hpp"

namespace vmm::tool {
namespace {

using virtio::Access;
using virtio::DiskFormat;

struct Case {
  const char* text;
  DiskImage image;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.text; }

class DiskImageText : public testing::TestWithParam<Case> {};

TEST_P(DiskImageText, IsReadAsItIsMeant) {
  const auto read = read_disk_image(GetParam().text);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(*read, GetParam().image);
}

INSTANTIATE_TEST_SUITE_P(Forms, DiskImageText,
                         testing::ValuesIn(std::vector<Case>{
                             {"a.img", {"a.img", DiskFormat::raw, Access::read_write, 0}},
                             {"a", {"a", DiskFormat::raw, Access::read_write, 0}},
                             {"a.img,ro", {"a.img", DiskFormat::raw, Access::read_only, 0}},
                             {"a.qcow2", {"a.qcow2", DiskFormat::qcow2, Access::read_write, 0}},
                             {"a.qcow2,ro", {"a.qcow2", DiskFormat::qcow2, Access::read_only, 0}},
                             {"a.qcow2,format=raw", {"a.qcow2", DiskFormat::raw, Access::read_write, 0}},
                             {"a.img,format=qcow2,ro", {"a.img", DiskFormat::qcow2, Access::read_only, 0}},
                             {"a.img,ro,format=qcow2", {"a.img", DiskFormat::qcow2, Access::read_only, 0}},
                             {"a.img,partition=15", {"a.img", DiskFormat::raw, Access::read_write, 15}},
                             {"a,b.qcow2", {"a,b.qcow2", DiskFormat::qcow2, Access::read_write, 0}},
                             {"a,ro,b,ro", {"a,ro,b", DiskFormat::raw, Access::read_only, 0}},
                             {"a,rw", {"a,rw", DiskFormat::raw, Access::read_write, 0}},
                         }));

struct BadCase {
  const char* text;
  const char* failure;
};

void PrintTo(const BadCase& given, std::ostream* out) { *out << given.text; }

class BadDiskImageText : public testing::TestWithParam<BadCase> {};

TEST_P(BadDiskImageText, IsRefusedInALine) {
  const auto read = read_disk_image(GetParam().text);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::usage);
  EXPECT_EQ(describe(read.error()), GetParam().failure);
}

INSTANTIATE_TEST_SUITE_P(Forms, BadDiskImageText,
                         testing::ValuesIn(std::vector<BadCase>{
                             {"", "the option of a disk names no image; give IMAGE[,ro][,format=raw|qcow2]"},
                             {",ro", "the option of a disk names no image; give IMAGE[,ro][,format=raw|qcow2]"},
                             {"a,format=vmdk", "unknown disk format \"vmdk\"; give IMAGE[,ro][,format=raw|qcow2]"},
                             {"a,format=", "unknown disk format \"\"; give IMAGE[,ro][,format=raw|qcow2]"},
                             {"a,format=\n,ro", "unknown disk format \"?\"; give IMAGE[,ro][,format=raw|qcow2]"},
                             {"a,partition=0", "\"0\" is not a partition's number; give 1 to 128"},
                             {"a,partition=129", "\"129\" is not a partition's number; give 1 to 128"},
                             {"a,partition=1x", "\"1x\" is not a partition's number; give 1 to 128"},
                             {"a,partition=-1", "\"-1\" is not a partition's number; give 1 to 128"},
                             {"a,partition=99999999999", "\"99999999999\" is not a partition's number; give 1 to 128"},
                         }));

// Otherwise a guest could write a qcow2 header to its raw disk, and read any file of the host that the header names.
TEST(DiskImage, IsNeverTakenForQcow2ByWhatIsInIt) {
  const std::string path = testing::TempDir() + "/exec-disk-image";
  std::ofstream{path} << "QFI\xfb" << std::string(508, '\0');
  const auto refused = read_disk_image(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(describe(refused.error()), path +
                                           " begins like a qcow2 image, but its name does not end in .qcow2; add "
                                           ",format=qcow2 if the image is yours, and ,format=raw if not");
  EXPECT_EQ(read_disk_image(path + ",format=raw")->format, DiskFormat::raw);
  EXPECT_EQ(read_disk_image(path + ",format=qcow2")->format, DiskFormat::qcow2);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace vmm::tool
