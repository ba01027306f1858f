#include "boot/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace vmm {
namespace {

class InputFiles : public testing::Test {
 protected:
  void TearDown() override { ::unlink(path_.c_str()); }
  [[nodiscard]] std::string refusal() const {
    const auto file = InputFile::open(path_, "kernel");
    return file ? "accepted" : describe(file.error());
  }

  std::string path_{testing::TempDir() + "input_file_" + std::to_string(::getpid())};
};

// A mapped file that is cut short ends the process where it is read.
TEST_F(InputFiles, ContentsOutliveTheFilesOwn) {
  std::ofstream{path_} << std::string(10000, 'a');
  const auto file = InputFile::open(path_, "kernel");
  ASSERT_TRUE(file) << describe(file.error());
  ASSERT_EQ(file->bytes().size(), 10000U);
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  for (const std::byte b : file->bytes()) ASSERT_EQ(b, std::byte{'a'});
}

TEST_F(InputFiles, WhatIsNoFileOrTooLargeIsRefusedAndNobodyWaits) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("not a regular file"), std::string::npos) << refusal();
  ::unlink(path_.c_str());
  std::ofstream{path_} << "a";
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(InputFile::most_bytes + 1)), 0);
  EXPECT_NE(refusal().find("2147483649 bytes are more than 2 GiB"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace vmm
