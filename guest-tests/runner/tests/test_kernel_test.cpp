#include "test_kernel.hpp"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gt_runner {
namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

/// A file of the test's own. The destructor removes it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& contents)
      : path_{std::filesystem::temp_directory_path() /
              ("kernel-" + std::to_string(::getpid()) + "-" + std::to_string(next_++))} {
    std::ofstream{path_, std::ios::binary} << contents;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  static inline int next_ = 0;
  std::filesystem::path path_;
};

std::string good_kernel() {
  std::ifstream in{BROKEN_TESTS_KERNEL, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::string error_of(const std::string& contents) {
  const TemporaryFile file{contents};
  const auto kernel = TestKernel::open(file.path());
  return kernel ? "" : kernel.error().what;
}

TEST(TestKernel, ListsTheTestsInTheOrderOfTheirDefinition) {
  const auto kernel = TestKernel::open(BROKEN_TESTS_KERNEL);
  ASSERT_TRUE(kernel) << kernel.error().what;
  ASSERT_EQ(kernel->tests().size(), 15U);
  EXPECT_EQ(kernel->tests()[0].name, "Good.Passes");
  EXPECT_EQ(kernel->tests()[14].name, "Needs.ExactCounts");
  EXPECT_NE(kernel->tests()[14].needs, 0U);
  EXPECT_THAT(kernel->tests(), Each(Field(&gt_runner::Test::name, Not(testing::IsEmpty()))));
}

TEST(TestKernel, RefusesWhatIsNoKernel) {
  EXPECT_THAT(error_of("no ELF at all"), HasSubstr("not an ELF file for x86-64"));
  std::string other_machine = good_kernel();
  other_machine[offsetof(Elf64_Ehdr, e_machine)] = '\x28';
  EXPECT_THAT(error_of(other_machine), HasSubstr("not an ELF file for x86-64"));
  EXPECT_FALSE(TestKernel::open("/nonexistent/kernel.elf"));
}

TEST(TestKernel, SurvivesBrokenSectionTables) {
  const std::string good = good_kernel();
  EXPECT_THAT(error_of(good.substr(0, good.size() / 2)), HasSubstr("no section .gt_tests"));
  const auto with = [&good](std::size_t offset, std::uint64_t value, std::size_t bytes) {
    std::string bad = good;
    std::memcpy(bad.data() + offset, &value, bytes);
    return error_of(bad);
  };
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_shoff), ~0ULL, 8), HasSubstr("no section"));
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_shoff), ~0ULL - 100, 8), HasSubstr("no section"));
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_shstrndx), 0xFFFF, 2), HasSubstr("no section"));
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_shnum), 1, 2), HasSubstr("no section"));
}

}  // namespace
}  // namespace gt_runner
