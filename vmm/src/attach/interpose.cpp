// The library's entry points: ioctl() and close(), which replace the C library's. Preloaded into a VMM, the library
// gives that VMM's guests our PMU.
#include <linux/kvm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "attach/attachment.hpp"
#include "attach/environment.hpp"
#include "kvm/ioctl.hpp"

namespace {

/// Lives as long as the process: vCPU threads may run until its end.
struct Loaded {
  explicit Loaded(const vmm::AttachEnvironment& environment)
      : log{vmm::make_log(environment)}, attachment{environment.options, environment.statistics, log} {}
  vmm::Log log;
  vmm::Attachment attachment;
};

std::atomic<Loaded*> instance{};

/// Null if the environment asks for nothing. A wrong environment ends the VMM: its guests would not have the PMU that
/// was asked for.
Loaded* load() {
  const auto environment = vmm::read_environment();
  if (!environment) {
    std::fprintf(stderr, "vpmu: %s\n", vmm::describe(environment.error()).c_str());
    std::_Exit(EXIT_FAILURE);
  }
  if (*environment) instance = new Loaded{**environment};
  for (const std::string& name : vmm::unknown_variables()) {
    constexpr auto advice = "is ignored: this library knows only VPMU_MODEL, VPMU_SOURCE, VPMU_LOG and VPMU_STATS";
    if (Loaded* const l = instance) {
      l->log.warning("{} {}", name, advice);
    } else {
      std::fprintf(stderr, "vpmu: %s %s\n", name.c_str(), advice);
    }
  }
  return instance;
}

Loaded* loaded() {
  static Loaded* const once = load();
  return once;
}

/// Calls while there is no instance: the first one, or all if the environment asks for nothing.
[[gnu::noinline]] int first_call(int fd, unsigned long request, std::uintptr_t argument) {
  Loaded* const l = loaded();
  return l == nullptr ? vmm::ioctl_call(fd, request, argument) : l->attachment.call(fd, request, argument);
}

[[gnu::destructor]] void at_end() {
  if (Loaded* const l = instance) l->attachment.write_statistics();
}

}  // namespace

// On x86-64 a variadic argument is passed in the same register as a named one, and va_arg would cost more.
extern "C" [[gnu::visibility("default")]] int vpmu_ioctl(int fd, unsigned long request,
                                                         std::uintptr_t argument) __asm__("ioctl");
extern "C" int vpmu_ioctl(int fd, unsigned long request, std::uintptr_t argument) {
  // The kernel takes 32 bits; a VMM that keeps requests in an int (QEMU 7.2) sign-extends them.
  request = static_cast<std::uint32_t>(request);
  Loaded* const l = instance;
  if (l == nullptr) return first_call(fd, request, argument);
  return request == KVM_RUN ? l->attachment.run(fd) : l->attachment.call(fd, request, argument);
}

// Without an instance no file is ours. This includes the time while load() runs, which opens and closes files itself.
extern "C" [[gnu::visibility("default")]] int close(int fd) {
  if (Loaded* const l = instance) l->attachment.closing(fd);
  return static_cast<int>(::syscall(SYS_close, fd));
}
