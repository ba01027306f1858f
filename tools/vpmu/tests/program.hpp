#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "standard_stream.hpp"

namespace vmm::tool::test {

struct Ended {
  int exit_code;  ///< -1 if a signal ended the program.
  std::string output;
  std::string errors;
  long max_memory;  ///< In KiB.
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Starts the program in a directory of the test's own.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_ / "work");
    kernel_ = write("kernel", good_kernel());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& contents) {
    std::ofstream{directory_ / name, std::ios::binary} << contents;
    return directory_ / name;
  }

  /// An empty bzImage that every check accepts.
  static std::string good_kernel() {
    std::string image(3 * 512 + 4096, '\0');
    const auto put = [&image](std::size_t at, std::uint64_t value, int bytes) {
      for (int i = 0; i < bytes; ++i) {
        image[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
      }
    };
    put(0x1F1, 2, 1);
    put(0x1F4, 4096 / 16, 4);
    put(0x1FE, 0xAA55, 2);
    put(0x201, 0x6A, 1);
    put(0x202, 0x53726448, 4);
    put(0x206, 0x20F, 2);
    put(0x211, 1, 1);
    put(0x22C, 0x7FFFFFFF, 4);
    put(0x230, 0x200000, 4);
    put(0x234, 1, 1);
    put(0x236, 3, 2);
    put(0x238, 2047, 4);
    put(0x258, 0x1000000, 8);
    put(0x260, 0x100000, 4);
    return image;
  }

  /// The path of that kernel with `code` as its first instructions.
  std::string kernel_of(std::string_view code) {
    constexpr std::size_t entry = 3 * 512 + 0x200;
    auto image = good_kernel();
    image.replace(entry, code.size(), code);
    return write("code", image);
  }

  Ended vpmu(std::vector<std::string> arguments, uid_t user = 0) {
    const Started started = start(std::move(arguments), Streams{.user = user});
    return end(started);
  }

  /// Where the program's output goes, and as whom it runs.
  struct Streams {
    int output{-1};             ///< A descriptor; -1: the file that Ended::output is read from.
    const char* errors{"err"};  ///< The file for standard error in the test's directory; this one is Ended::errors.
    uid_t user{0};
    std::function<void()> prepare{};  ///< Called in the program's process, last.
  };
  struct Started {
    pid_t child;
  };

  Started start(std::vector<std::string> arguments, const Streams& streams) {
    arguments.insert(arguments.begin(), VPMU_PROGRAM);
    const pid_t child = ::fork();
    if (child == 0) become(arguments, streams);
    return {child};
  }

  /// Waits for the program's end. Kills it after five minutes: exit code -1.
  Ended end(Started started) {
    int status = 0;
    rusage used{};
    pid_t ended = 0;
    for (int i = 0; i < 30'000 && ended == 0; ++i) {
      ended = ::wait4(started.child, &status, WNOHANG, &used);
      if (ended == 0) ::usleep(10'000);
    }
    if (ended == 0) {
      ADD_FAILURE() << "no end";
      ::kill(started.child, SIGKILL);
      ended = ::wait4(started.child, &status, 0, &used);
    }
    EXPECT_EQ(ended, started.child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(directory_ / "out"), read_file(directory_ / "err"),
            used.ru_maxrss};
  }

  Ended run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "run");
    return vpmu(std::move(arguments));
  }

  /// What must hold after every failure.
  void expect_failure(const Ended& ended, int exit_code, const std::vector<std::string>& parts) const {
    EXPECT_EQ(ended.exit_code, exit_code) << ended.errors;
    EXPECT_EQ(std::ranges::count(ended.errors, '\n'), 1) << "one line, not:\n" << ended.errors;
    EXPECT_EQ(ended.output, "");
    for (const auto& part : parts) {
      EXPECT_NE(ended.errors.find(part), std::string::npos) << '"' << part << "\" is not in: " << ended.errors;
    }
    EXPECT_TRUE(std::filesystem::is_empty(directory_ / "work")) << "something was left behind";
  }

  std::filesystem::path directory_{std::filesystem::path{testing::TempDir()} /
                                   ("program_" + std::to_string(::getpid()))};
  std::string kernel_;

 private:
  [[noreturn]] void become(std::vector<std::string> arguments, const Streams& streams) const {
    constexpr mode_t mode = 0644;
    const auto open_file = [this](const char* name) {
      return ::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, mode);
    };
    become_stream(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    become_stream(streams.output >= 0 ? streams.output : open_file("out"), STDOUT_FILENO);
    become_stream(open_file(streams.errors), STDERR_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (streams.prepare) streams.prepare();
    if (::chdir((directory_ / "work").c_str()) == 0 && (streams.user == 0 || ::setuid(streams.user) == 0)) {
      ::execv(pointers[0], pointers.data());
    }
    ::_exit(127);
  }
};

}  // namespace vmm::tool::test
