#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

// The qemu-vpmu wrapper. A script in place of QEMU prints its environment and arguments.

namespace vmm::test {
namespace {

namespace fs = std::filesystem;

class QemuVpmu : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(directory_);
    std::ofstream{qemu_} << "#!/bin/sh\necho \"preload $LD_PRELOAD\"\necho \"model $VPMU_MODEL\"\nfor a in \"$@\"; do "
                            "echo \"argument $a\"; done\nexit 7\n";
    fs::permissions(qemu_, fs::perms::owner_all);
  }
  void TearDown() override { fs::remove_all(directory_); }

  /// Runs `wrapper` with an environment of just these variables; returns its output and exit code.
  [[nodiscard]] static std::string run(const std::string& variables, const std::string& wrapper = VPMU_WRAPPER) {
    // The library may be built with ASan, which insists on being the first library of a process.
    const std::string command = "env -i PATH=/nowhere ASAN_OPTIONS=verify_asan_link_order=0 " + variables + " '" +
                                wrapper + "' -cpu 'a b' 2>&1";
    std::FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return "no shell";
    std::string text;
    std::array<char, 4096> buffer{};
    while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
    return text + "exit " + std::to_string(WEXITSTATUS(pclose(pipe)));
  }

  fs::path directory_ = fs::temp_directory_path() / ("qemu-vpmu-" + std::to_string(getpid()));
  fs::path qemu_ = directory_ / "qemu";
  std::string variables_ = "VPMU_QEMU=" + qemu_.string();
};

TEST_F(QemuVpmu, PreloadsTheLibraryBesideItAndPassesEverythingOn) {
  EXPECT_EQ(run(variables_ + " VPMU_MODEL=haswell"),
            "preload " VPMU_LIBRARY "\nmodel haswell\nargument -cpu\nargument a b\nexit 7");
}

TEST_F(QemuVpmu, KeepsWhatIsPreloadedAlready) {
  const std::string other = "libm.so.6";
  EXPECT_TRUE(run(variables_ + " VPMU_MODEL=haswell LD_PRELOAD=" + other)
                  .starts_with("preload " VPMU_LIBRARY ":" + other + "\n"));
  EXPECT_TRUE(
      run(variables_ + " VPMU_MODEL=haswell LD_PRELOAD=" VPMU_LIBRARY).starts_with("preload " VPMU_LIBRARY "\n"));
}

TEST_F(QemuVpmu, IsQemuAndNothingElseWithoutAModel) {
  EXPECT_EQ(run(variables_), "preload \nmodel \nargument -cpu\nargument a b\nexit 7");
  EXPECT_EQ(run(variables_ + " VPMU_MODEL="), "preload \nmodel \nargument -cpu\nargument a b\nexit 7");
}

TEST_F(QemuVpmu, StartsNoQemuWithoutItsPmu) {
  const auto copy = directory_ / "copy of it";
  fs::copy_file(VPMU_WRAPPER, copy);
  EXPECT_TRUE(run(variables_ + " VPMU_MODEL=haswell", copy)
                  .starts_with("qemu-vpmu: no " + directory_.string() + "/libvpmu-kvm.so; "));
  EXPECT_TRUE(run(variables_ + " VPMU_MODEL=haswell", copy).ends_with("exit 127"));
  EXPECT_TRUE(run(variables_, copy).ends_with("exit 7"));
  fs::create_directory(directory_ / "a b");
  fs::copy_file(VPMU_WRAPPER, directory_ / "a b/qemu-vpmu");
  ASSERT_TRUE(std::ofstream{directory_ / "a b/libvpmu-kvm.so"}.is_open());
  EXPECT_NE(run(variables_ + " VPMU_MODEL=haswell", directory_ / "a b/qemu-vpmu").find("ld.so ends a path at a space"),
            std::string::npos);
}

TEST_F(QemuVpmu, SaysWhichQemuIsMissing) {
  EXPECT_EQ(run("VPMU_QEMU=/no/qemu VPMU_MODEL=haswell"),
            "qemu-vpmu: no QEMU at /no/qemu; install it, or set VPMU_QEMU to its path\nexit 127");
}

}  // namespace
}  // namespace vmm::test
