#include "jail/broker.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace vmm::test {
namespace {

class StewardTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view text) const { std::ofstream{path_} << text; }
  [[nodiscard]] bool exists() const { return std::filesystem::exists(path_); }
  [[nodiscard]] Broker::Duties duties() const {
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

  std::string path_{testing::TempDir() + "broker_" + std::to_string(::getpid())};
};

TEST_F(StewardTest, WritesWhatItIsGivenAndHandsErrorsBack) {
  auto broker = Broker::start(duties());
  ASSERT_TRUE(broker);
  const std::string large(300'000, 'x');
  ASSERT_TRUE(broker->write_statistics(large));
  EXPECT_EQ(std::filesystem::file_size(path_), large.size());
  const auto bad = broker->write_statistics("bad");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::usage);
  EXPECT_EQ(describe(bad.error()), "cannot write x; give y");
}

/// A guest's cycles, of the calling thread.
constexpr PerfEventSpec guests_cycles{.event = {.type = PERF_TYPE_HARDWARE, .config = PERF_COUNT_HW_CPU_CYCLES},
                                      .usr = true,
                                      .os = true,
                                      .guest_only = true};

TEST_F(StewardTest, HandsOverTheEventsThatItOpens) {
  auto with = duties();
  with.open_event = [](const PerfEventSpec& spec, pid_t thread) -> Result<Fd> {
    if (spec != guests_cycles) return host_error("not what was asked for", ENODEV);
    Fd file{::memfd_create("event", MFD_CLOEXEC)};
    const std::string content = std::to_string(thread);
    if (::pwrite(file.get(), content.data(), content.size(), 0) < 0) return host_error("pwrite", errno);
    return file;
  };
  auto broker = Broker::start(with);
  ASSERT_TRUE(broker);
  std::vector<std::thread> threads;
  std::atomic<unsigned> right{0};
  for (unsigned n = 0; n < 4; ++n)
    threads.emplace_back([&] {
      const auto me = static_cast<pid_t>(::syscall(SYS_gettid));
      const auto opened = broker->open_event(guests_cycles, me);
      std::array<char, 32> content{};
      if (opened && ::pread(opened->get(), content.data(), content.size(), 0) > 0 && std::atoi(content.data()) == me)
        ++right;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4U);
  PerfEventSpec unknown = guests_cycles;
  unknown.usr = false;
  const auto failed = broker->open_event(unknown, ::getpid());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().system_errno, ENODEV);
  EXPECT_TRUE(broker->write_statistics("x")) << "it still serves";
}

// A guest that has taken over the machine's process gets no view of others by it.
TEST_F(StewardTest, OpensNothingButTheMachinesOwnEvents) {
  auto with = duties();
  with.open_event = [](const PerfEventSpec&, pid_t) -> Result<Fd> {
    return Fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  };
  auto broker = Broker::start(with);
  ASSERT_TRUE(broker);
  ASSERT_TRUE(broker->open_event(guests_cycles, ::getpid()));
  const auto refusal = [&](const PerfEventSpec& spec, pid_t thread) {
    const auto opened = broker->open_event(spec, thread);
    return opened ? std::string{"opened"} : opened.error().what;
  };
  for (const pid_t others : {::getppid(), 0, -1})
    EXPECT_NE(refusal(guests_cycles, others).find("not the machine's"), std::string::npos) << others;
  PerfEventSpec of_the_kernel = guests_cycles, tracepoint = guests_cycles;
  of_the_kernel.guest_only = false;
  tracepoint.event.type = PERF_TYPE_TRACEPOINT;
  EXPECT_NE(refusal(of_the_kernel, ::getpid()).find("the host's kernel"), std::string::npos);
  EXPECT_NE(refusal(tracepoint, ::getpid()).find("type 2"), std::string::npos);
  auto without = Broker::start(duties());
  ASSERT_TRUE(without);
  EXPECT_FALSE(without->open_event(guests_cycles, ::getpid()));
}

TEST_F(StewardTest, FinishesASnapshotOnlyWhereThereIsOne) {
  auto broker = Broker::start(duties());
  ASSERT_TRUE(broker);
  ASSERT_TRUE(broker->finish_snapshot());
  EXPECT_EQ(std::filesystem::file_size(path_), 8);
  auto without = duties();
  without.finish_snapshot = {};
  auto other = Broker::start(without);
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->finish_snapshot());
  EXPECT_TRUE(other->write_statistics("x")) << "it still serves";
}

TEST_F(StewardTest, HasCleanedUpWhenItsEndIsOver) {
  write("x");
  auto broker = Broker::start(duties());
  ASSERT_TRUE(broker);
  EXPECT_TRUE(exists());
  broker->end();
  EXPECT_FALSE(exists());
  EXPECT_FALSE(broker->write_statistics("x")) << "it has gone";
}

TEST_F(StewardTest, CleansUpWhenTheProcessIsKilled) {
  write("x");
  const pid_t process = ::fork();
  if (process == 0) {
    const auto broker = Broker::start(duties());
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(process, nullptr, 0), process);
  for (int i = 0; i < 6000 && exists(); ++i) ::usleep(10'000);
  EXPECT_FALSE(exists());
}

TEST_F(StewardTest, HoldsNoDescriptorOfTheProcess) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const auto broker = Broker::start(duties());
  ASSERT_TRUE(broker);
  ::close(pipe[1]);
  char byte{};
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0) << "nobody else can write to it";
  ::close(pipe[0]);
}

}  // namespace
}  // namespace vmm::test
