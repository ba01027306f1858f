#include "files/input_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace vmm {
namespace {

class InputFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& contents) {
    const std::string path = directory_ / "file";
    std::ofstream{path, std::ios::binary} << contents;
    return path;
  }
  static std::string refusal(const std::string& path, std::uint64_t max = 100) {
    const auto read = read_whole_file(path, {.what = "the map", .advice = "give one with --map"}, max);
    EXPECT_FALSE(read.has_value());
    return read ? "" : describe(read.error());
  }

  std::filesystem::path directory_{std::filesystem::path{testing::TempDir()} /
                                   ("input_file_" + std::to_string(::getpid()))};
};

TEST_F(InputFileTest, ReadsAll) {
  const auto read = read_whole_file(file("abc"), {}, 3);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read->data()), read->size()), "abc");
}

// Opening a pipe would wait for a writer, and reading /dev/zero would never end.
TEST_F(InputFileTest, RefusesAtOnceWhatIsNoRegularFile) {
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal(pipe),
            "cannot read the map " + pipe + ": it is a named pipe, not a regular file; give one with --map");
  EXPECT_NE(refusal("/dev/zero").find("it is a device, not a regular file"), std::string::npos);
  EXPECT_NE(refusal(directory_).find("it is a directory"), std::string::npos);
  EXPECT_NE(refusal("/no/such/file").find("No such file or directory"), std::string::npos);
  EXPECT_NE(refusal(file("")).find("it is empty"), std::string::npos);
}

TEST_F(InputFileTest, RefusesMoreThanTheMost) {
  EXPECT_NE(refusal(file("abcd"), 3).find("it has 4 bytes, and at most 3 are allowed"), std::string::npos);
}

TEST_F(InputFileTest, OneThatIsShortenedEndsEarly) {
  const std::string path = file(std::string(10'000, 'x'));
  auto input = InputFile::open(path, {});
  ASSERT_TRUE(input.has_value());
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  std::vector<std::byte> room(10'000);
  EXPECT_EQ(input->size(), 10'000U);
  EXPECT_EQ(input->read(room).value_or(0), 5000U);
  EXPECT_EQ(input->read(room).value_or(1), 0U);
}

}  // namespace
}  // namespace vmm
