// A file that has its name only when it is whole.
#include "files/whole_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fakes/own_directory.hpp"

namespace vmm {
namespace {

namespace fs = std::filesystem;

class WholeFiles : public testing::Test {
 protected:
  WholeFiles() { fs::create_directory(place()); }
  [[nodiscard]] fs::path place() const { return directory_.path() / "own"; }
  [[nodiscard]] std::string path() const { return place() / "file"; }
  [[nodiscard]] WholeFile create() const {
    auto file = WholeFile::create(path(), {.what = "the file", .advice = "give another"});
    EXPECT_TRUE(file);
    return std::move(*file);
  }
  static void write(WholeFile& file, std::string_view text) { EXPECT_TRUE(file.write(std::as_bytes(std::span{text}))); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator{place()}) all.push_back(entry.path().filename());
    std::ranges::sort(all);
    return all;
  }
  [[nodiscard]] std::string content() const {
    std::ifstream in{path()};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

 private:
  test::Directory directory_;
};

using Names = std::vector<std::string>;

TEST_F(WholeFiles, HasItsNameOnceItIsFinished) {
  WholeFile file = create();
  write(file, "whole");
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(content(), "whole");
  EXPECT_EQ(names(), Names{"file"});
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(WholeFiles, ReplacesAnOlderOne) {
  std::ofstream{path()} << "older";
  WholeFile file = create();
  write(file, "newer");
  EXPECT_EQ(content(), "older");
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(content(), "newer");
  EXPECT_EQ(names(), Names{"file"});
}

TEST_F(WholeFiles, LeavesNothingIfItIsNotFinished) {
  {
    WholeFile file = create();
    write(file, "part");
  }
  EXPECT_EQ(names(), Names{});
}

TEST_F(WholeFiles, LeavesNothingOfAProcessThatIsKilled) {
  const Fd without_name{::open(place().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
  if (!without_name.valid()) GTEST_SKIP() << "this file system has no files without names";
  const pid_t child = ::fork();
  if (child == 0) {
    WholeFile file = create();
    write(file, "part");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names(), Names{});
}

TEST_F(WholeFiles, IsFinishedByAnotherProcess) {
  WholeFile file = create();
  write(file, "by two");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(file.finish() ? 0 : 1);
  file.hand_over();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(), "by two");
  EXPECT_TRUE(file.finish());
  EXPECT_EQ(names(), Names{"file"});
}

/// From here on the process may link no file, as AppArmor can have it.
bool refuse_links() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_linkat, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = std::size(code), .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(WholeFiles, IsCopiedWhereItMayGetNoName) {
  const std::string text(3'000'000, 'x');
  for (const std::string_view older : {"", "older"}) {
    if (!older.empty()) std::ofstream{path()} << older;
    const pid_t child = ::fork();
    if (child == 0) {
      WholeFile file = create();
      write(file, text);
      struct stat like{};
      like.st_uid = ::getuid();
      like.st_gid = ::getgid();
      like.st_mode = 0640;
      ::_exit(refuse_links() && file.be_like(like) && file.finish() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(content(), text);
    EXPECT_EQ(names(), Names{"file"});
    struct stat is{};
    ASSERT_EQ(::stat(path().c_str(), &is), 0);
    EXPECT_EQ(is.st_mode & ALLPERMS, 0640U);
  }
}

TEST_F(WholeFiles, FollowsNoLink) {
  fs::create_symlink("/dev/null", path());
  EXPECT_FALSE(WholeFile::create(path(), {.what = "the file", .advice = "give another"}));
  EXPECT_FALSE(WholeFile::create(path() + "/x", {.what = "the file", .advice = "give another"}));
}

}  // namespace
}  // namespace vmm
