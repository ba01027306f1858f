#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "kvm/fd.hpp"
#include "program.hpp"

// Files of the wrong kind, files that two options name, and outputs on a full device. Runs the real program.

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

class Files : public Program {
 protected:
  std::string make_pipe() {
    const std::string path = directory_ / "pipe";
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  /// Runs the program with standard output on a full device.
  Ended without_room(std::vector<std::string> arguments) {
    const Fd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
    return end(start(std::move(arguments), {.output = full.get()}));
  }
};

TEST_F(Files, ANamedPipeIsRefusedAtOnce) {
  const std::string pipe = make_pipe();
  for (const std::string option : {"--initrd", "--events", "--stats", "--model-log", "--console"})
    expect_failure(run({"--accel", "soft", "--kernel", kernel_, option, pipe}), 2,
                   {pipe + ": it is a named pipe", option});
  expect_failure(run({"--accel", "soft", "--kernel", pipe}), 2, {pipe + ": it is a named pipe", "--kernel"});
  expect_failure(vpmu({"records", "--format", "1", pipe}), 2, {pipe + ": it is a named pipe"});
}

TEST_F(Files, ADeviceWithoutEndIsRefusedAtOnce) {
  for (const std::string option : {"--initrd", "--events"})
    expect_failure(run({"--accel", "soft", "--kernel", kernel_, option, "/dev/zero"}), 2,
                   {"/dev/zero: it is a device, not a regular file", option});
  expect_failure(vpmu({"records", "--format", "1", "/dev/zero"}), 2,
                 {"it is a device", "from the buffer's base to its index"});
  const auto large = write("large", "");
  fs::resize_file(large, 2U << 20U);
  expect_failure(run({"--accel", "soft", "--kernel", kernel_, "--events", large}), 2,
                 {"it has 2097152 bytes, and at most 1048576 are allowed"});
}

TEST_F(Files, NoOutputTakesThePlaceOfAnInput) {
  const std::string before = read_file(kernel_);
  for (const std::string option : {"--stats", "--model-log", "--console"})
    expect_failure(run({"--accel", "soft", "--kernel", kernel_, option, kernel_}), 2,
                   {option + " would overwrite " + kernel_ + ", the file of --kernel"});
  EXPECT_EQ(read_file(kernel_), before);
  const std::string fresh = directory_ / "fresh";
  expect_failure(run({"--accel", "soft", "--kernel", kernel_, "--stats", fresh, "--console", fresh}), 2,
                 {"--stats would overwrite", "the file of --console"});
  EXPECT_FALSE(fs::exists(fresh));
}

TEST_F(Files, AStartThatFailsLeavesTheFilesOfTheLastRun) {
  for (const std::string option : {"--stats", "--model-log", "--console"}) {
    const std::string old = write("old", "of the last run"), fresh = directory_ / "fresh";
    for (const auto& file : {old, fresh})
      expect_failure(run({"--accel", "soft", "--kernel", "/no/such/kernel", option, file}), 2, {"/no/such/kernel"});
    EXPECT_EQ(read_file(old), "of the last run") << option;
    EXPECT_FALSE(fs::exists(fresh)) << option;
  }
}

TEST_F(Files, WhatOnlySoundsLikeAPolicyIsAFileAsWell) {
  const auto ended = run({"--accel", "soft", "--kernel", kernel_of("\x0F\x0B"), "--stats", "all"});
  EXPECT_EQ(ended.exit_code, 5) << ended.errors;
  EXPECT_TRUE(fs::exists(directory_ / "work" / "all")) << "--events all is no file";
}

TEST_F(Files, ARunThatEndsReplacesThem) {
  const std::string stats = write("stats", std::string(100'000, 'x')), log = write("log", "old"),
                    console = write("console", "old");
  const auto ended = run({"--accel", "soft", "--kernel", kernel_of("\x0F\x0B"), "--stats", stats, "--model-log", log,
                          "--console", console});
  EXPECT_EQ(ended.exit_code, 5) << ended.errors;
  EXPECT_TRUE(read_file(stats).starts_with("{\"machine\":{")) << read_file(stats).substr(0, 100);
  EXPECT_TRUE(read_file(stats).ends_with("]}\n"));
  EXPECT_EQ(read_file(log), "");
  EXPECT_EQ(read_file(console), "");
}

TEST_F(Files, OutputWithoutRoomIsAFailureThatIsTold) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"models"},
                                             {"events", "--model", "haswell"},
                                             {"records", "--format", "0", write("buffer", std::string(144, '\0'))},
                                             {"records", "--format", "0", write("buffers", std::string(144'000, '\0'))},
                                             {"doctor", "--kvm", "/dev/no-kvm"},
                                             {"--help"},
                                             {"virt", "hook", "--domain", "<domain/>"}}) {
    const auto ended = without_room(arguments);
    EXPECT_EQ(ended.exit_code, 1) << arguments[0];
    EXPECT_NE(ended.errors.find("vpmu: cannot write all of it to standard output"), std::string::npos)
        << arguments[0] << ": " << ended.errors;
    EXPECT_EQ(std::ranges::count(ended.errors, '\n'), 1) << ended.errors;
  }
  const auto ended =
      run({"--accel", "soft", "--source", "exact", "--kernel", kernel_of("\x0F\x0B"), "--stats", "/dev/full"});
  expect_failure(ended, 1, {"cannot write the statistics file /dev/full: No space left on device", "--stats"});
}

/// A closed stream's number must not become that of the next file, which the output would go into.
TEST_F(Files, OutputToAClosedStreamIsAFailureThatIsTold) {
  const auto close_output = [] { ::close(STDOUT_FILENO); };
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"models", "--json"}, {"events", "--model", "haswell"}, {"--help"}}) {
    const auto ended = end(start(arguments, {.prepare = close_output}));
    expect_failure(ended, 1, {"vpmu: cannot write all of it to standard output: Bad file descriptor"});
  }
  const auto ended = end(start({"run", "--accel", "soft", "--kernel", kernel_}, {.prepare = close_output}));
  expect_failure(ended, 2, {"standard output is closed", "--console"});
}

TEST_F(Files, OutputThatNobodyReadsIsAFailureThatIsTold) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  const Fd unread{ends[1]};
  expect_failure(end(start({"models"}, {.output = unread.get()})), 1, {"standard output: Broken pipe"});
}

TEST_F(Files, OutputBeyondTheLargestFileIsAFailureThatIsTold) {
  const auto limit = [] {
    const rlimit small{.rlim_cur = 400, .rlim_max = 400};
    ::setrlimit(RLIMIT_FSIZE, &small);
  };
  const auto models = end(start({"models", "--json"}, {.prepare = limit}));
  EXPECT_EQ(models.exit_code, 1) << "-1: a signal has ended it";
  EXPECT_EQ(models.output.size(), 400U);
  EXPECT_EQ(models.errors, "vpmu: cannot write all of it to standard output: File too large\n");
  const auto code = kernel_of("\x0F\x0B");
  const auto run = end(start({"run", "--accel", "soft", "--source", "exact", "--kernel", code, "--stats",
                              (directory_ / "work" / "statistics").string()},
                             {.prepare = limit}));
  expect_failure(run, 1, {"cannot write the statistics file", "File too large"});
}

/// Each size of the address space is enough, or the program says that it is not: no signal ends it.
TEST_F(Files, LittleMemoryIsAFailureThatIsTold) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ASan's shadow memory is larger than any of these limits";
#endif
  const auto code = kernel_of("\x0F\x0B");  // ends by a triple fault
  unsigned failed = 0, done = 0;
  for (rlim_t mib = 64; mib <= 448; mib += 16) {
    const auto ended = end(
        start({"run", "--accel", "soft", "--source", "exact", "--memory", "64M", "--kernel", code}, {.prepare = [mib] {
                const rlimit little{.rlim_cur = mib << 20U, .rlim_max = mib << 20U};
                ::setrlimit(RLIMIT_AS, &little);
              }}));
    if (ended.exit_code == 127) continue;  // not even the program's libraries
    if (ended.exit_code == 5) {
      ++done;
      continue;
    }
    ++failed;
    expect_failure(ended, 1, {"vpmu"});
  }
  EXPECT_GT(failed, 0U);
  EXPECT_GT(done, 0U);
}

TEST_F(Files, RecordsNeedNoMoreMemoryForMoreOfThem) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ASan keeps what has been freed";
#endif
  const auto one = write("one", std::string(144, '\0')), many = write("many", "");
  fs::resize_file(many, 144 * 300'000);
  const Fd null{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  const auto memory_for = [&](const std::string& file) {
    const auto ended = end(start({"records", "--format", "0", file}, {.output = null.get()}));
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return ended.max_memory;
  };
  const long min = memory_for(one);
  EXPECT_LT(memory_for(many), min + 8192) << "KiB, of a file of 42,187";
}

}  // namespace
}  // namespace vmm::tool::test
