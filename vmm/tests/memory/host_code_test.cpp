#include "memory/host_code.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

namespace vmm::test {
namespace {

/// mov $value, %eax; ret
std::array<std::byte, 6> returns(std::uint8_t value) {
  return {std::byte{0xB8}, std::byte{value}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0xC3}};
}
int run(const std::byte* at) { return reinterpret_cast<int (*)()>(reinterpret_cast<std::uintptr_t>(at))(); }

TEST(MappedHostCode, RunsWhatWasAdded) {
  MappedHostCode code;
  const std::byte* const first = code.add(returns(41));
  const std::byte* const second = code.add(returns(42));
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(run(first), 41);
  EXPECT_EQ(run(second), 42);
  code.clear();
  const std::byte* const again = code.add(returns(43));
  EXPECT_EQ(again, first) << "from the start";
  EXPECT_EQ(run(again), 43) << "what was written last, where something else ran before";
}

TEST(MappedHostCode, IsNowhereWritableAndExecutable) {
  MappedHostCode code;
  ASSERT_NE(code.add(returns(1)), nullptr);
  std::ifstream maps{"/proc/self/maps"};
  unsigned ours = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("vpmu-routines") == std::string::npos) continue;
    ++ours;
    const std::string protection = line.substr(line.find(' ') + 1, 3);
    EXPECT_TRUE(protection == "r-x" || protection == "rw-") << line;
  }
  EXPECT_EQ(ours, 2U);
}

TEST(MappedHostCode, SaysWhenItIsFull) {
  MappedHostCode code;
  const std::vector<std::byte> routine(4000);
  std::size_t added = 0;
  while (code.add(routine) != nullptr) added += routine.size();
  EXPECT_GT(added, MappedHostCode::bytes - 2 * routine.size());
  EXPECT_LE(added, MappedHostCode::bytes);
  code.clear();
  EXPECT_NE(code.add(routine), nullptr);
}

TEST(MappedHostCode, GivesNothingWhereTheHostRefuses) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  MappedHostCode code;
  const std::byte* const at = code.add(returns(1));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(at, nullptr);
  EXPECT_EQ(code.add(returns(1)), nullptr) << "and does not try again";
}

}  // namespace
}  // namespace vmm::test
