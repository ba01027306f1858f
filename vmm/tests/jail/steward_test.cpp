#include "jail/steward.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace vmm::test {
namespace {

class StewardTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view text) const { std::ofstream{path_} << text; }
  [[nodiscard]] bool exists() const { return std::filesystem::exists(path_); }
  [[nodiscard]] Steward::Duties duties() const {
    return {.write_statistics = [this](std::string_view text) -> Result<void> {
              if (text == "bad") return usage_error("cannot write x", "give y");
              write(text);
              return {};
            },
            .finish_snapshot = [this]() -> Result<void> {
              write("finished");
              return {};
            },
            .clean_up = [this] { std::filesystem::remove(path_); }};
  }

  std::string path_{testing::TempDir() + "steward_" + std::to_string(::getpid())};
};

TEST_F(StewardTest, WritesWhatItIsGivenAndHandsErrorsBack) {
  auto steward = Steward::start(duties());
  ASSERT_TRUE(steward);
  const std::string large(300'000, 'x');
  ASSERT_TRUE(steward->write_statistics(large));
  EXPECT_EQ(std::filesystem::file_size(path_), large.size());
  const auto bad = steward->write_statistics("bad");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::usage);
  EXPECT_EQ(describe(bad.error()), "cannot write x; give y");
}

TEST_F(StewardTest, FinishesASnapshotOnlyWhereThereIsOne) {
  auto steward = Steward::start(duties());
  ASSERT_TRUE(steward);
  ASSERT_TRUE(steward->finish_snapshot());
  EXPECT_EQ(std::filesystem::file_size(path_), 8);
  auto without = duties();
  without.finish_snapshot = {};
  auto other = Steward::start(without);
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->finish_snapshot());
  EXPECT_TRUE(other->write_statistics("x")) << "it still serves";
}

TEST_F(StewardTest, HasCleanedUpWhenItsEndIsOver) {
  write("x");
  auto steward = Steward::start(duties());
  ASSERT_TRUE(steward);
  EXPECT_TRUE(exists());
  steward->end();
  EXPECT_FALSE(exists());
  EXPECT_FALSE(steward->write_statistics("x")) << "it has gone";
}

TEST_F(StewardTest, CleansUpWhenTheProcessIsKilled) {
  write("x");
  const pid_t process = ::fork();
  if (process == 0) {
    const auto steward = Steward::start(duties());
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(process, nullptr, 0), process);
  for (int i = 0; i < 6000 && exists(); ++i) ::usleep(10'000);
  EXPECT_FALSE(exists());
}

TEST_F(StewardTest, HoldsNoDescriptorOfTheProcess) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const auto steward = Steward::start(duties());
  ASSERT_TRUE(steward);
  ::close(pipe[1]);
  char byte{};
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0) << "nobody else can write to it";
  ::close(pipe[0]);
}

}  // namespace
}  // namespace vmm::test
