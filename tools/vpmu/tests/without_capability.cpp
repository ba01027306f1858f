// Preloaded into the program: KVM then lacks the capability whose number is in WITHOUT_CAPABILITY.

#include <dlfcn.h>
#include <linux/kvm.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, void* argument) {
  using Ioctl = int (*)(int, unsigned long, void*);
  static const auto next = reinterpret_cast<Ioctl>(::dlsym(RTLD_NEXT, "ioctl"));
  const char* const missing = std::getenv("WITHOUT_CAPABILITY");
  if (request == KVM_CHECK_EXTENSION && missing != nullptr &&
      reinterpret_cast<std::uintptr_t>(argument) == std::strtoul(missing, nullptr, 10)) {
    return 0;
  }
  return next(fd, request, argument);
}
