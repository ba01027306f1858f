// The preloaded library in a process of its own: this program starts itself again with it, and its own syscall()
// answers in place of the kernel.
#include <gtest/gtest.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "fakes/raw_syscall.hpp"

namespace vmm::test {
namespace {

struct Call {
  long number, fd, request, argument;
  friend bool operator==(const Call&, const Call&) = default;
};

std::vector<Call>* recorded = nullptr;  ///< While set, these calls do not reach the kernel.
long answer = 0;
int error = 0;

long stand_in(long number, const std::array<long, 6>& a) {
  const bool ours = recorded != nullptr && (number == SYS_ioctl || number == SYS_close);
  if (!ours) return raw_syscall(number, a);
  recorded->push_back({.number = number,
                       .fd = a[0],
                       .request = number == SYS_ioctl ? a[1] : 0,
                       .argument = number == SYS_ioctl ? a[2] : 0});
  errno = error;
  return answer;
}

}  // namespace
}  // namespace vmm::test

// The library makes its system calls through this function. It takes precedence over the C library's because the
// program exports it.
extern "C" __attribute__((visibility("default"))) READS_SIX_ARGUMENTS long syscall(long number, ...) noexcept {
  std::array<long, 6> a{};
  va_list arguments;
  va_start(arguments, number);
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  return vmm::test::stand_in(number, a);
}

namespace vmm::test {
namespace {

constexpr const char* preload = "LD_PRELOAD";
constexpr int fd = 77;

/// Every KVM request that the library interposes with a model, and some that it never does.
constexpr std::array<unsigned long, 26> requests{KVM_GET_API_VERSION,
                                                 KVM_CREATE_VM,
                                                 KVM_CHECK_EXTENSION,
                                                 KVM_GET_VCPU_MMAP_SIZE,
                                                 KVM_GET_SUPPORTED_CPUID,
                                                 KVM_GET_MSR_INDEX_LIST,
                                                 KVM_CREATE_VCPU,
                                                 KVM_SET_USER_MEMORY_REGION,
                                                 KVM_GET_DIRTY_LOG,
                                                 KVM_X86_SET_MSR_FILTER,
                                                 KVM_ENABLE_CAP,
                                                 KVM_RUN,
                                                 KVM_GET_REGS,
                                                 KVM_SET_REGS,
                                                 KVM_SET_SREGS,
                                                 KVM_SET_SREGS2,
                                                 KVM_GET_MSRS,
                                                 KVM_SET_MSRS,
                                                 KVM_SET_CPUID2,
                                                 KVM_SET_GUEST_DEBUG,
                                                 KVM_GET_NESTED_STATE,
                                                 KVM_SET_NESTED_STATE,
                                                 KVM_GET_LAPIC,
                                                 FIONREAD,
                                                 TCGETS,
                                                 0xDEAD'BEEF};

/// ioctl() must reach the kernel once and unchanged, and return what the kernel returned.
void expect_untouched(unsigned long request, std::uintptr_t argument, long result, int failure) {
  std::vector<Call> calls;
  answer = result;
  error = failure;
  recorded = &calls;
  errno = 0;
  const int returned = ::ioctl(fd, request, argument);
  const int found = errno;
  recorded = nullptr;
  EXPECT_EQ(calls,
            (std::vector<Call>{{SYS_ioctl, fd, static_cast<long>(request & UINT_MAX), static_cast<long>(argument)}}))
      << std::hex << request;
  EXPECT_EQ(returned, result) << std::hex << request;
  EXPECT_EQ(found, failure) << std::hex << request;
}

bool has_library() { return std::getenv(preload) != nullptr; }

}  // namespace

TEST(InertInside, EveryIoctlGoesThroughUntouched) {
  if (!has_library()) GTEST_SKIP() << "run by Inert.*";
  std::vector<Call> calls;
  recorded = &calls;
  ::ioctl(fd, FIONREAD, 0);
  recorded = nullptr;
  ASSERT_EQ(calls.size(), 1U) << "the C library's ioctl() was called";
  std::array<std::uint64_t, 8> memory{1, 2, 3, 4, 5, 6, 7, 8};
  const auto before = memory;
  for (const unsigned long request : requests) {
    for (const std::uintptr_t argument :
         {std::uintptr_t{0}, std::uintptr_t{42}, reinterpret_cast<std::uintptr_t>(memory.data())}) {
      expect_untouched(request, argument, 0, 0);
      expect_untouched(request, argument, 9, 0);
      expect_untouched(request, argument, -1, EINTR);
      expect_untouched(request, argument, -1, EFAULT);
    }
    expect_untouched(0xFFFF'FFFF'0000'0000 | request, 1, 3, 0);  // a request that was kept in an int
  }
  EXPECT_EQ(memory, before);
}

TEST(InertInside, CloseGoesThroughUntouched) {
  if (!has_library()) GTEST_SKIP() << "run by Inert.*";
  std::vector<Call> calls;
  recorded = &calls;
  answer = -1;
  error = EBADF;
  const int returned = ::close(fd);
  const int found = errno;
  recorded = nullptr;
  EXPECT_EQ(calls, (std::vector<Call>{{SYS_close, fd, 0, 0}}));
  EXPECT_EQ(returned, -1);
  EXPECT_EQ(found, EBADF);
}

// Shows that the library is loaded at all: with a model it makes KVM calls of its own, and none to other files.
TEST(LoadedInside, WithAModelKvmIsAskedMore) {
  if (!has_library()) GTEST_SKIP() << "run by Inert.*";
  for (const auto request : std::array<unsigned long, 2>{FIONREAD, TCGETS}) expect_untouched(request, 42, -1, ENOTTY);
  std::vector<Call> calls;
  answer = -1;
  error = EMFILE;
  recorded = &calls;
  EXPECT_EQ(::ioctl(fd, KVM_CREATE_VM, 0), -1);
  recorded = nullptr;
  EXPECT_GT(calls.size(), 1U);
}

namespace {

/// Runs some tests of this program in another process with the library, and returns its exit code.
int run_inside(const std::string& tests, const std::string& variables) {
  std::array<char, PATH_MAX> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) return -1;
  const std::string command = "exec env " + variables + " LD_PRELOAD=" VPMU_ATTACH_LIBRARY " " + self.data() +
                              " --gtest_filter='" + tests + "' >&2";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST(Inert, WithoutAModel) { EXPECT_EQ(run_inside("InertInside.*", "-u VPMU_MODEL"), 0); }
TEST(Inert, WithAnEmptyModel) { EXPECT_EQ(run_inside("InertInside.*", "VPMU_MODEL="), 0); }
TEST(Inert, NotWithAModel) { EXPECT_EQ(run_inside("LoadedInside.*", "VPMU_MODEL=haswell"), 0); }
TEST(Inert, AWrongModelEndsTheVmm) { EXPECT_EQ(run_inside("InertInside.*", "VPMU_MODEL=nosuch"), EXIT_FAILURE); }

}  // namespace vmm::test
