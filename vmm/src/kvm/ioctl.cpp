#include "kvm/ioctl.hpp"

#include <linux/kvm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

// Request numbers carry the size of their structure: see kvm/headers/linux/stddef.h.
static_assert(sizeof(kvm_cpuid2) == 8 && sizeof(kvm_msrs) == 8);

namespace vmm {

namespace {

thread_local std::map<std::string_view, std::uint64_t> made;

Result<int> repeat(const Fd& fd, unsigned long request, const char* name, std::uintptr_t argument) {
  for (;;) {
    ++made[name];
    const int result = ioctl_call(fd.get(), request, argument);
    if (result >= 0) return result;
    if (errno != EINTR) return host_error(name, errno);
  }
}

}  // namespace

int ioctl_call(int fd, unsigned long request, std::uintptr_t argument) {
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}

Result<int> ioctl_with(const Fd& fd, unsigned long request, const char* name, void* argument) {
  return repeat(fd, request, name, reinterpret_cast<std::uintptr_t>(argument));
}

Result<int> ioctl_value(const Fd& fd, unsigned long request, const char* name, std::uintptr_t argument) {
  return repeat(fd, request, name, argument);
}

const std::map<std::string_view, std::uint64_t>& ioctls_made() { return made; }

}  // namespace vmm
