#include "pmu/named_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <map>

// The files that programs open are known by their system calls. Linux, arch/x86/entry/syscalls/syscall_64.tbl.

namespace vmm::test {
namespace {

using vpmu::Slot;
using Names = std::set<std::string>;
constexpr std::uint64_t name_at = 0x5000, other_at = 0x6000;

class NamedFilesOf : public testing::Test {
 protected:
  void put(std::uint64_t at, const std::string& text) {
    for (std::size_t i = 0; i <= text.size(); ++i) memory_[at + i] = static_cast<std::byte>(text.c_str()[i]);
  }
  void call(std::uint64_t number, std::uint64_t rdi, std::uint64_t rsi = 0, std::uint64_t rdx = 0) {
    vpmu::PebsRegisters registers{};
    registers[Slot::rax] = number;
    registers[Slot::rdi] = rdi;
    registers[Slot::rsi] = rsi;
    registers[Slot::rdx] = rdx;
    files_.called(registers);
  }
  std::map<std::uint64_t, std::byte> memory_;
  NamedFiles files_{[this](vpmu::GuestLinear at, std::span<std::byte> out) {
    const auto found = memory_.find(at.value());
    if (found == memory_.end() || out.size() != 1) return false;
    out[0] = found->second;
    return true;
  }};
};
constexpr auto here = static_cast<std::uint64_t>(AT_FDCWD);

TEST_F(NamedFilesOf, EachCallHasItsName) {
  put(name_at, "/bin/ls");
  put(other_at, "a.txt");
  call(SYS_execve, name_at);
  call(SYS_openat, here, other_at, O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(files_.names().names, (Names{"/bin/ls", "a.txt"}));
  put(name_at, "/lib/b.so");
  call(SYS_open, name_at, O_RDONLY);
  put(name_at, "/lib/c.so");
  call(SYS_openat2, 7, name_at, 0x9000);
  put(name_at, "/bin/d");
  call(SYS_execveat, here & 0xFFFF'FFFF, name_at);
  call(SYS_read, name_at, other_at);
  EXPECT_EQ(files_.names().names, (Names{"/bin/d", "/bin/ls", "/lib/b.so", "/lib/c.so", "a.txt"}));
  EXPECT_EQ(files_.names().lost, 0U);
}

// What a program writes is no input.
TEST_F(NamedFilesOf, OnlyFilesThatAreReadCount) {
  put(name_at, "/out");
  call(SYS_open, name_at, O_WRONLY | O_CREAT);
  call(SYS_openat, here, name_at, O_RDWR);
  EXPECT_EQ(files_.names().names, Names{});
}

TEST_F(NamedFilesOf, ANameInAnotherDirectoryIsLostUnlessItIsAbsolute) {
  put(name_at, "relative");
  call(SYS_openat, 7, name_at);
  EXPECT_EQ(files_.names().names, Names{});
  EXPECT_EQ(files_.names().lost, 1U);
}

// The kernel maps the page of the name when it reads it.
TEST_F(NamedFilesOf, ANameThatIsNotMappedIsReadAtTheNextCall) {
  call(SYS_open, name_at);
  put(name_at, "/late");
  call(SYS_close, 3);
  EXPECT_EQ(files_.names().names, (Names{"/late"}));
  EXPECT_EQ(files_.names().lost, 0U);
  call(SYS_open, other_at);
  call(SYS_close, 3);
  EXPECT_EQ(files_.names().lost, 1U) << "it was never there";
  call(SYS_open, other_at);
  files_.switched();
  put(other_at, "/another task's");
  call(SYS_close, 3);
  EXPECT_EQ(files_.names().names, (Names{"/late"}));
  EXPECT_EQ(files_.names().lost, 2U);
}

TEST_F(NamedFilesOf, NamesAreBounded) {
  put(name_at, std::string(2 * FileNames::max_length, 'x'));
  call(SYS_open, name_at);
  ASSERT_EQ(files_.names().names.size(), 1U);
  EXPECT_EQ(files_.names().names.begin()->size(), FileNames::max_length);
  FileNames many;
  for (std::size_t i = 0; i < FileNames::max_names + 5; ++i) many.add(std::to_string(i));
  EXPECT_EQ(many.names.size(), FileNames::max_names);
  EXPECT_EQ(many.lost, 5U);
  FileNames more;
  more.add("one");
  many.merge(more);
  EXPECT_EQ(many.lost, 6U);
}

}  // namespace
}  // namespace vmm::test
