#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
    return ended.most_memory;
  };
  const long least = memory_for(one);
  EXPECT_LT(memory_for(many), least + 8192) << "KiB, of a file of 42,187";
}

}  // namespace
}  // namespace vmm::tool::test
