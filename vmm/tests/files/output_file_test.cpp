#include "files/output_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "files/distinct_files.hpp"

namespace vmm {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override { fs::remove_all(directory_); }

  [[nodiscard]] std::string path(const char* name) const { return directory_ / name; }
  std::string file(const char* name, const std::string& contents) {
    std::ofstream{path(name), std::ios::binary} << contents;
    return path(name);
  }
  static std::string contents(const std::string& path) {
    std::ifstream in{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
  }
  static Result<OutputFile> open(const std::string& path) {
    return OutputFile::open(path, {.what = "the log", .advice = "give one with --log"});
  }
  static std::string refusal(const std::string& path) {
    const auto opened = open(path);
    EXPECT_FALSE(opened.has_value());
    return opened ? "" : describe(opened.error());
  }
  [[nodiscard]] std::ptrdiff_t files() const { return std::distance(fs::directory_iterator{directory_}, {}); }

  fs::path directory_{fs::path{testing::TempDir()} / ("output_file_" + std::to_string(::getpid()))};
};

TEST_F(OutputFileTest, KeepsTheOldContentsUntilThereAreNewOnes) {
  const std::string old = file("old", "old");
  ::chmod(old.c_str(), 0640);
  {
    auto out = open(old);
    ASSERT_TRUE(out.has_value());
  }
  EXPECT_EQ(contents(old), "old") << "nothing was written";
  auto out = open(old);
  ASSERT_TRUE(out.has_value());
  struct stat before{}, after{};
  ASSERT_EQ(::stat(old.c_str(), &before), 0);
  ASSERT_TRUE(out->replace("new").has_value());
  EXPECT_EQ(contents(old), "new");
  ASSERT_EQ(::stat(old.c_str(), &after), 0);
  EXPECT_NE(after.st_ino, before.st_ino) << "another file, which took its name when it was complete";
  EXPECT_EQ(after.st_mode & ALLPERMS, 0640U);
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, LeavesNoNewFileBehindThatNobodyWrote) {
  ASSERT_TRUE(open(path("new")).has_value());
  EXPECT_EQ(files(), 0);
  {
    auto out = open(path("new"));
    ASSERT_TRUE(out.has_value());
    ASSERT_TRUE(out->replace("text").has_value());
  }
  EXPECT_EQ(contents(path("new")), "text");
}

TEST_F(OutputFileTest, IsEmptiedByBeginAndThenWrittenToAsThingsGoOn) {
  auto out = open(file("log", "old"));
  ASSERT_TRUE(out.has_value());
  const auto fd = out->descriptor();
  ASSERT_TRUE(fd.has_value());
  EXPECT_EQ(contents(path("log")), "old");
  ASSERT_TRUE(out->begin().has_value());
  EXPECT_EQ(write_all(fd->get(), "one"), 0);
  EXPECT_EQ(contents(path("log")), "one");
}

TEST_F(OutputFileTest, FollowsALinkToTheFile) {
  const std::string real = file("real", "old");
  fs::create_symlink("real", path("link"));
  auto out = open(path("link"));
  ASSERT_TRUE(out.has_value());
  ASSERT_TRUE(out->replace("new").has_value());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(contents(real), "new");
}

TEST_F(OutputFileTest, WritesToTheFileItselfWhereItsDirectoryIsNotToBeChanged) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else and come back";
  const std::string name = file("shared", "old and long");
  ::chmod(name.c_str(), 0666);
  ::chmod(directory_.c_str(), 0755);
  auto out = open(name);
  ASSERT_TRUE(out.has_value());
  constexpr uid_t nobody = 65534;
  ASSERT_EQ(::seteuid(nobody), 0);
  const auto done = out->replace("new");
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_TRUE(done.has_value());
  EXPECT_EQ(contents(name), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, ANameMayBeAsLongAsNamesCanBe) {
  const std::string name = directory_ / std::string(255, 'n');
  auto out = open(name);
  ASSERT_TRUE(out.has_value());
  EXPECT_TRUE(out->replace("text").has_value());
  EXPECT_EQ(contents(name), "text");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, RefusesAtOnceWhatCannotBeWritten) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("pipe")),
            "cannot write the log " + path("pipe") +
                ": it is a named pipe, neither a regular file nor a character device; give one with --log");
  const Fd reader{::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  EXPECT_NE(refusal(path("pipe")).find("it is a named pipe"), std::string::npos) << "also where it is read";
  EXPECT_NE(refusal(directory_).find("Is a directory"), std::string::npos);
  EXPECT_NE(refusal("/no/such/dir/log").find("No such file or directory"), std::string::npos);
}

TEST_F(OutputFileTest, ADeviceTakesWhatItCan) {
  auto null = open("/dev/null");
  ASSERT_TRUE(null.has_value());
  EXPECT_TRUE(null->replace("text").has_value());
  auto full = open("/dev/full");
  ASSERT_TRUE(full.has_value());
  const auto done = full->replace("text");
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().system_errno, ENOSPC);
  EXPECT_EQ(done.error().kind, ErrorKind::host);
}

TEST_F(OutputFileTest, NoFileIsReadAndWrittenOrWrittenTwice) {
  const std::string one = file("one", "1"), other = file("other", "2"), fresh = path("fresh");
  fs::create_symlink("one", path("link"));
  fs::create_hard_link(one, path("hard"));
  const auto refused = [](const std::string& read, const std::string& written, const std::string& too) {
    const std::array in{NamedFile{"--in", read}};
    const std::array out{NamedFile{"--out", written}, NamedFile{"--log", too}};
    const auto checked = check_distinct(in, out);
    return checked ? "" : describe(checked.error());
  };
  EXPECT_EQ(refused(one, other, fresh), "");
  EXPECT_EQ(refused("", "", ""), "");
  EXPECT_EQ(refused("/dev/null", "/dev/null", "/dev/null"), "");
  EXPECT_EQ(refused(one, path("link"), ""),
            "--out would overwrite " + path("link") + ", the file of --in; give another file with --out");
  EXPECT_NE(refused(one, path("hard"), ""), "");
  EXPECT_NE(refused("", fresh, directory_ / "." / "fresh"), "") << "though neither is there yet";
}

}  // namespace
}  // namespace vmm
