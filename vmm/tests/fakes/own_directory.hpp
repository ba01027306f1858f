#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace vmm::test {

/// A directory of the test's own, with a file of 12345 bytes.
class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "vpmu,test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
    std::ofstream{path_ / "file"} << std::string(12345, 'x');
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace vmm::test
