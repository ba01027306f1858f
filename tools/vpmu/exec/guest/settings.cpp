#include "exec/guest/settings.hpp"

#include <fcntl.h>
#include <linux/random.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "exec/guest/network.hpp"
#include "exec/guest/system.hpp"

namespace vmm::tool::guest {
namespace {

/// Without a seed getrandom() waits until the kernel has gathered enough entropy: it spins for 2.5 billion instructions
/// if the timer is the only source of randomness.
Result<void> seed_random_numbers(const std::string& seed) {
  if (seed.empty()) return {};
  VMM_ASSIGN(const Fd file, open_file("/dev/urandom", O_WRONLY));
  std::vector<int> words((sizeof(rand_pool_info) + seed.size()) / sizeof(int) + 1);
  auto* const pool = reinterpret_cast<rand_pool_info*>(words.data());
  constexpr int bits = 256;  // the entropy that the kernel waits for
  pool->entropy_count = bits;
  pool->buf_size = static_cast<int>(seed.size());
  std::memcpy(pool->buf, seed.data(), seed.size());
  if (::ioctl(file.get(), RNDADDENTROPY, pool) != 0) return host_error("seeding the kernel's random numbers", errno);
  // At once: other guests may go on from where this one had booted. Kernels before 4.8 have no such request.
  if (::ioctl(file.get(), RNDRESEEDCRNG) != 0 && errno != EINVAL)
    return host_error("taking the seed of the kernel's random numbers", errno);
  return {};
}

Result<void> set_clock(std::uint64_t nanoseconds) {
  constexpr std::uint64_t second = 1'000'000'000;
  const timespec time{.tv_sec = static_cast<std::time_t>(nanoseconds / second),
                      .tv_nsec = static_cast<long>(nanoseconds % second)};
  if (::clock_settime(CLOCK_REALTIME, &time) != 0) return host_error("setting the clock", errno);
  return {};
}

/// Raises limits to what distributions allow users to request; the kernel's own default would be 4096.
void raise_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  constexpr rlim_t usual = 1U << 20;
  files.rlim_max = usual;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

Result<void> apply_settings(const ExecRequest& request) {
  if (!request.hostname.empty() && ::sethostname(request.hostname.data(), request.hostname.size()) != 0)
    return host_error("setting the host name " + request.hostname, errno);
  VMM_TRY(start_loopback());
  if (request.network) VMM_TRY(start_network(*request.network));
  if (request.clock) VMM_TRY(set_clock(*request.clock));
  VMM_TRY(seed_random_numbers(request.random_seed));
  raise_limits();
  // The file is missing in a kernel without perf events.
  if (::access("/proc/sys/kernel/perf_event_paranoid", F_OK) == 0)
    VMM_TRY(write_file("/proc/sys/kernel/perf_event_paranoid", "-1"));
  return write_file("/proc/sys/kernel/kptr_restrict", "0");
}

}  // namespace vmm::tool::guest
