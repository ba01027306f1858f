#include "exec/guest_date.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "fakes/own_directory.hpp"

namespace vmm::tool {
namespace {

constexpr std::int64_t day = 86'400, least = 1'000'000'000;

class GuestDate : public testing::Test {
 protected:
  GuestDate() { std::filesystem::remove(directory_.path() / "file"); }
  void make(const std::string& name, std::int64_t changed) {
    const std::string path = directory_.path().string() + "/" + name;
    std::ofstream{path}.flush();
    const std::array<timespec, 2> times{{{.tv_sec = changed}, {.tv_sec = changed}}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  }
  std::int64_t date() { return guest_date(least, std::vector<std::string>{directory_.path().string()}); }
  test::Directory directory_;
};

TEST_F(GuestDate, IsTheLeastWhereAllIsOlder) {
  make("old", least - 5);
  EXPECT_EQ(date(), least);
  EXPECT_EQ(guest_date(least, std::vector<std::string>{"/no/such/directory"}), least);
}

TEST_F(GuestDate, IsTheMidnightBehindTheNewestFile) {
  make("old", least - 5);
  make("new", least + 10);
  const std::int64_t midnight = (least / day + 1) * day;
  EXPECT_EQ(date(), midnight);
  make("at-midnight", midnight);
  EXPECT_EQ(date(), midnight + day);
  std::filesystem::create_directory(directory_.path() / "sub");
  make("sub/newer", midnight + 3 * day);
  const std::array<timespec, 2> old{};
  ASSERT_EQ(::utimensat(AT_FDCWD, (directory_.path() / "sub").c_str(), old.data(), 0), 0);
  EXPECT_EQ(date(), midnight + 4 * day);
}

TEST_F(GuestDate, IsNotThatOfAFileOfTheFuture) {
  make("future", std::time(nullptr) + 10 * day);
  EXPECT_EQ(date(), least);
}

}  // namespace
}  // namespace vmm::tool
