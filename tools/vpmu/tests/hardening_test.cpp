#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <regex>
#include <string>

// The hardening that compiler and linker have put into the program and the library, as readelf and objdump show it.

namespace vmm::tool::test {
namespace {

std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::string text;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), got);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return text;
}

bool has(const std::string& text, const std::string& pattern) { return std::regex_search(text, std::regex{pattern}); }

class Hardening : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static std::string readelf(const std::string& options) {
    return output_of("readelf -W " + options + " " + GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Files, Hardening, testing::Values(VPMU_PROGRAM, VPMU_ATTACH_LIBRARY),
                         [](const auto& file) { return std::string{file.index == 0 ? "Program" : "Library"}; });

TEST_P(Hardening, LiesAnywhereAndItsTablesAreReadOnly) {
  EXPECT_TRUE(has(readelf("-h"), "Type: +DYN"));
  const std::string dynamic = readelf("-d");
  EXPECT_TRUE(has(dynamic, "FLAGS\\) +.*BIND_NOW"));
  EXPECT_FALSE(has(dynamic, "TEXTREL"));
  EXPECT_TRUE(has(readelf("-l"), "GNU_RELRO "));
  EXPECT_EQ(has(dynamic, "FLAGS_1\\) +.*PIE"), std::string{GetParam()} == VPMU_PROGRAM);
}

TEST_P(Hardening, HasNoSegmentThatIsWritableAndExecutable) {
  const std::string segments = readelf("-l");
  EXPECT_TRUE(has(segments, "GNU_STACK +0x[0-9a-f]+ 0x[0-9a-f]+ 0x[0-9a-f]+ 0x[0-9a-f]+ 0x[0-9a-f]+ RW +0x"))
      << segments;
  EXPECT_FALSE(has(segments, " RWE "));
}

TEST_P(Hardening, ChecksItsStackItsBuffersAndItsContainers) {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "only where the compiler optimises, and without sanitizers";
#endif
  const std::string symbols = readelf("--dyn-syms");
  EXPECT_TRUE(has(symbols, "UND __stack_chk_fail"));
  EXPECT_TRUE(has(symbols, "UND __(memcpy|memmove|read|fprintf|snprintf|vsnprintf|strncpy|poll|fread)_chk"));
  EXPECT_TRUE(has(symbols, "UND _ZSt21__glibcxx_assert_fail"));
}

// Only `vpmu virt` needs libvirt, and loads it itself.
TEST_P(Hardening, StartsWithoutLibvirt) {
  const std::string dynamic = readelf("-d");
  EXPECT_TRUE(has(dynamic, "NEEDED\\) +Shared library: \\[libc.so.6\\]"));
  EXPECT_FALSE(has(dynamic, "NEEDED\\) +Shared library: \\[libvirt"));
}

/// The share of functions that begin with ENDBR64. Parts that the compiler has split off do not count.
double share_of_landing_pads(const std::string& file, const std::string& name) {
  const std::string code = output_of("objdump -d --no-show-raw-insn " + file);
  const std::regex function{"\n[0-9a-f]+ <" + name + "[^>.]*>:\n *[0-9a-f]+:\t(\\w+)"};
  int functions = 0, with = 0;
  for (auto at = std::sregex_iterator{code.begin(), code.end(), function}; at != std::sregex_iterator{}; ++at) {
    ++functions;
    if ((*at)[1] == "endbr64") ++with;
  }
  EXPECT_GT(functions, 100) << name;
  return functions == 0 ? 0 : static_cast<double>(with) / functions;
}

// The property in the file itself cannot be tested: Debian's start-up code lacks it, so the linker drops it.
TEST(HardeningOfFunctions, IndirectBranchesHaveLandingPadsButInTheEngine) {
  EXPECT_GT(share_of_landing_pads(
                VPMU_PROGRAM,
                "_ZNK?3vmm\\d+(?:Machine|Session|VcpuThread|SoftBackend|InstructionRunner|PmuVcpu|Serial16550)"),
            0.9);
}

TEST(HardeningOfGuests, TestKernelsStandAlone) {
  const std::string symbols = output_of("readelf -W -s " VPMU_TEST_KERNEL);
  EXPECT_FALSE(has(symbols, "__stack_chk_fail|_chk$|glibcxx_assert"));
  EXPECT_FALSE(has(output_of("readelf -W -l " VPMU_TEST_KERNEL), "GNU_RELRO"));
}

}  // namespace
}  // namespace vmm::tool::test
