// Directories that outlive a killed process, and are swept away by the next.
#include "files/work_directory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fakes/own_directory.hpp"

namespace vmm {
namespace {

namespace fs = std::filesystem;

class WorkDirectories : public testing::Test {
 protected:
  [[nodiscard]] std::string place() const { return place_.path(); }
  [[nodiscard]] Result<WorkDirectory> create() const { return WorkDirectory::create(place()); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator{place()})
      if (entry.path().filename() != "file") all.push_back(entry.path());
    std::ranges::sort(all);
    return all;
  }
  /// A process that has made a work directory with a file in it, and waits.
  struct Other {
    pid_t process{};
    std::string path;
  };
  [[nodiscard]] Other start_other() const {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t process = ::fork();
    if (process == 0) {
      const auto made = create();
      const std::string path = made ? made->path() : "";
      std::ofstream{path + "/result"} << "half";
      (void)!::write(ends[1], path.data(), path.size());
      ::close(ends[1]);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    Other other{.process = process, .path = std::string(4096, '\0')};
    const ssize_t got = ::read(ends[0], other.path.data(), other.path.size());
    other.path.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    ::close(ends[0]);
    EXPECT_TRUE(fs::exists(other.path + "/result"));
    return other;
  }
  static void kill(const Other& other) {
    EXPECT_EQ(::kill(other.process, SIGKILL), 0);
    EXPECT_EQ(::waitpid(other.process, nullptr, 0), other.process);
  }

 private:
  test::Directory place_;
};

TEST_F(WorkDirectories, AreRemovedWithWhatIsInThem) {
  {
    const auto made = create();
    ASSERT_TRUE(made) << describe(made.error());
    EXPECT_EQ(names(), std::vector{made->path()});
    EXPECT_EQ(fs::status(made->path()).permissions(), fs::perms::owner_all);
    fs::create_directory(made->path() + "/more");
    std::ofstream{made->path() + "/more/file"} << "text";
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(WorkDirectories, OfKilledProcessesAreSweptAway) {
  const Other killed = start_other(), lives = start_other();
  kill(killed);
  EXPECT_TRUE(fs::exists(killed.path)) << "nobody has looked yet";
  {
    const auto made = create();
    ASSERT_TRUE(made) << describe(made.error());
    std::vector<std::string> left{made->path(), lives.path};
    std::ranges::sort(left);
    EXPECT_EQ(names(), left);
    EXPECT_TRUE(fs::exists(lives.path + "/result"));
  }
  kill(lives);
  ASSERT_TRUE(create());
  EXPECT_TRUE(names().empty());
}

TEST_F(WorkDirectories, LeaveOthersThingsAlone) {
  // A link, a file, and directories whose names only begin as ours do.
  fs::create_directory(place() + "/target");
  fs::create_directory_symlink(place() + "/target", place() + "/vpmu-work-abcdef");
  std::ofstream{place() + "/vpmu-work-ghijkl"} << "text";
  fs::create_directory(place() + "/vpmu-work-long-name");
  fs::create_directory(place() + "/vpmu-abcdef");
  const auto before = names();
  ASSERT_TRUE(create());
  EXPECT_EQ(names(), before);
}

TEST_F(WorkDirectories, SayWhereTheyCannotBeMade) {
  const auto refused = WorkDirectory::create(place() + "/file");
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("Not a directory"), std::string::npos) << describe(refused.error());
}

}  // namespace
}  // namespace vmm
