// The library's entries: ioctl() and close(), in the place of the C library's. Preloaded into a VMM it gives that VMM's guests our PMU.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
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

/// Null where the environment asks for nothing. A wrong one ends the VMM: a guest without its PMU is not what was asked for.
Loaded* load() {
  const auto environment = vmm::read_environment();
  if (!environment) {
    std::fprintf(stderr, "vpmu: VPMU_MODEL, VPMU_SOURCE: %s\n", vmm::describe(environment.error()).c_str());
    std::_Exit(EXIT_FAILURE);
  }
  if (*environment) instance = new Loaded{**environment};
  return instance;
}

Loaded* loaded() {
  static Loaded* const once = load();
  return once;
}

[[gnu::destructor]] void at_end() {
  if (Loaded* const l = instance) l->attachment.write_statistics();
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  const auto argument = va_arg(arguments, std::uintptr_t);
  va_end(arguments);
  // The kernel takes 32 bits; a VMM that keeps requests in an int (QEMU 7.2) extends their sign.
  request = static_cast<std::uint32_t>(request);
  Loaded* const l = loaded();
  return l == nullptr ? vmm::ioctl_call(fd, request, argument) : l->attachment.call(fd, request, argument);
}

// What was never attached to is none of ours. Also of use while load() runs, which opens files and closes them.
extern "C" [[gnu::visibility("default")]] int close(int fd) {
  if (Loaded* const l = instance) l->attachment.closing(fd);
  return static_cast<int>(::syscall(SYS_close, fd));
}
