// To be preloaded into the program: hides the KVM capability whose number is in WITHOUT_CAPABILITY. The program makes
// its ioctls by syscall().

#include <dlfcn.h>
#include <linux/kvm.h>
#include <sys/syscall.h>

#include <cstdlib>

extern "C" __attribute__((visibility("default"))) long syscall(long number, long a, long b, long c, long d, long e,
                                                               long f) {
  using Syscall = long (*)(long, long, long, long, long, long, long);
  static const auto next = reinterpret_cast<Syscall>(::dlsym(RTLD_NEXT, "syscall"));
  const char* const missing = std::getenv("WITHOUT_CAPABILITY");
  if (number == SYS_ioctl && static_cast<unsigned long>(b) == KVM_CHECK_EXTENSION && missing != nullptr &&
      c == std::strtol(missing, nullptr, 10))
    return 0;
  return next(number, a, b, c, d, e, f);
}
