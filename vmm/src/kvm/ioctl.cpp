#include "kvm/ioctl.hpp"

#include <sys/ioctl.h>

#include <cerrno>

namespace vmm {

Result<int> ioctl_with(const Fd& fd, unsigned long request, const char* name, void* argument) {
  for (;;) {
    const int result = ::ioctl(fd.get(), request, argument);
    if (result >= 0) {
      return result;
    }
    if (errno != EINTR) {
      return host_error(name, errno);
    }
  }
}

Result<int> ioctl_value(const Fd& fd, unsigned long request, const char* name, std::uintptr_t argument) {
  for (;;) {
    const int result = ::ioctl(fd.get(), request, argument);
    if (result >= 0) {
      return result;
    }
    if (errno != EINTR) {
      return host_error(name, errno);
    }
  }
}

}  // namespace vmm
