#include "memory/host_code.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"

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

TEST(MappedHostCode, RunsWhatWasChanged) {
  MappedHostCode code;
  const std::byte* const at = code.add(returns(41));
  ASSERT_NE(at, nullptr);
  for (const std::uint32_t value : {42U, 43U, 0x1234'5678U}) {
    ASSERT_TRUE(code.change(at + 1, value));
    EXPECT_EQ(run(at), static_cast<int>(value));
  }
  EXPECT_FALSE(code.change(at + vpmu::page_size, 0)) << "nothing was added there";
  EXPECT_FALSE(code.change(at - 4, 0));
  EXPECT_EQ(run(at), 0x1234'5678);
}

struct Mapped {
  std::uint64_t from{}, to{};
  std::string protection, name;
};
std::vector<Mapped> mappings() {
  std::vector<Mapped> all;
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    Mapped m;
    char dash{};
    std::istringstream{line} >> std::hex >> m.from >> dash >> m.to >> m.protection;
    m.name = line;
    all.push_back(m);
  }
  return all;
}
/// The mappings of the code's memory file. Fails if one is writable, or if any mapping is writable and executable.
std::vector<Mapped> code_mappings() {
  std::vector<Mapped> ours;
  for (const Mapped& m : mappings()) {
    EXPECT_FALSE(m.protection[1] == 'w' && m.protection[2] == 'x') << m.name;
    if (m.name.find("vpmu-routines") == std::string::npos) continue;
    EXPECT_EQ(m.protection, "r-xs") << m.name;
    ours.push_back(m);
  }
  return ours;
}

TEST(MappedHostCode, IsNowhereWritable) {
  MappedHostCode code;
  const std::byte* const at = code.add(returns(1));
  ASSERT_NE(at, nullptr);
  const auto ours = code_mappings();
  ASSERT_EQ(ours.size(), 1U);
  EXPECT_EQ(ours[0].to - ours[0].from, MappedHostCode::bytes);
  auto* const page = reinterpret_cast<void*>(ours[0].from);
  EXPECT_EQ(::mprotect(page, vpmu::page_size, PROT_READ | PROT_WRITE), -1) << "nor can it become so";
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(run(at), 1);
}

// A jump out of the code area must fault.
TEST(MappedHostCode, StandsBetweenGuards) {
  MappedHostCode code;
  ASSERT_NE(code.add(returns(1)), nullptr);
  const auto ours = code_mappings();
  ASSERT_EQ(ours.size(), 1U);
  bool before = false;
  bool behind = false;
  for (const Mapped& m : mappings()) {
    if (m.to == ours[0].from) before = m.protection == "---p";
    if (m.from == ours[0].to) behind = m.protection == "---p";
  }
  EXPECT_TRUE(before);
  EXPECT_TRUE(behind);
}

TEST(MappedHostCode, NobodyResizesIt) {
  MappedHostCode code;
  ASSERT_NE(code.add(returns(1)), nullptr);
  unsigned ours = 0;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().find("vpmu-routines") == std::string::npos) continue;
    ++ours;
    const int fd = std::stoi(entry.path().filename());
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(::ftruncate(fd, 2 * MappedHostCode::bytes), -1);
    EXPECT_EQ(::fcntl(fd, F_GET_SEALS), F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  }
  EXPECT_EQ(ours, 1U);
}

/// Examines the mappings while the guest executes RDTSC.
class Looking final : public vpmu::exec::NoPlatform {
 public:
  vpmu::exec::Answer rdtsc(std::uint64_t& value) override {
    value = 0;
    mappings = code_mappings().size();
    ++looked;
    return vpmu::exec::Answer::done;
  }
  std::size_t mappings{};
  unsigned looked{};
};

TEST(MappedHostCode, IsNotWritableWhileTheGuestRuns) {
  vpmu::exec::test::FlatRam ram{vpmu::page_size};
  Looking platform;
  MappedHostCode code;
  vpmu::exec::Engine engine{ram, platform, &code, vpmu::exec::Compiling{.after = 1}};
  const auto loop = X86("1: dec %rcx; jne 1b; rdtsc; jmp 1b");
  for (std::size_t n = 0; n < loop.size(); ++n) ram.bytes()[n] = static_cast<std::byte>(loop[n]);
  vpmu::exec::CpuState s;
  s.rip = ram.address();
  s.gpr[vpmu::exec::rcx] = 10;
  engine.load(s);
  EXPECT_EQ(engine.run(30), vpmu::exec::Stop::budget);
  EXPECT_GT(engine.compiled_blocks(), 0U);
  EXPECT_EQ(platform.looked, 1U);
  EXPECT_EQ(platform.mappings, 1U);
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
