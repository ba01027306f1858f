#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <set>
#include <vector>

#include "kvm/fd.hpp"
#include "kvm/kick.hpp"
#include "perf/linux_perf_host.hpp"
#include "perf/perf_errors.hpp"
#include "perf/perf_host.hpp"

namespace vmm {
namespace {

class LinuxPerfEvent final : public PerfEvent {
 public:
  explicit LinuxPerfEvent(Fd fd) : fd_{std::move(fd)} {}

  Result<PerfReading> read() override {
    std::array<std::uint64_t, 3> words{};
    const ssize_t got = ::read(fd_.get(), words.data(), sizeof words);
    if (got != sizeof words) return host_error("reading a perf event", got < 0 ? errno : 0);
    return PerfReading{.value = words[0], .enabled_ns = words[1], .running_ns = words[2]};
  }
  // Also resumes an event that the kernel has throttled.
  Result<void> set_period(std::uint64_t events) override { return command(PERF_EVENT_IOC_PERIOD, &events); }
  Result<void> enable() override { return command(PERF_EVENT_IOC_ENABLE, nullptr); }
  Result<void> disable() override { return command(PERF_EVENT_IOC_DISABLE, nullptr); }

 private:
  Result<void> command(unsigned long request, std::uint64_t* argument) {
    if (::ioctl(fd_.get(), request, argument) != 0) return host_error("ioctl of a perf event", errno);
    return {};
  }
  Fd fd_;
};

/// The CPUs on which the thread may run.
Result<std::set<unsigned>> allowed_cpus(pid_t thread) {
  std::array<unsigned long, 1024> words{};  // 65,536 CPUs
  const long bytes = ::syscall(SYS_sched_getaffinity, thread, sizeof words, words.data());
  if (bytes < 0) return host_error("sched_getaffinity", errno);
  std::set<unsigned> cpus;
  for (unsigned cpu = 0; cpu < static_cast<unsigned long>(bytes) * 8; ++cpu)
    if ((words.at(cpu / 64) >> (cpu % 64) & 1) != 0) cpus.insert(cpu);
  return cpus;
}

/// The PMU that counts for the thread on a hybrid host. Where a thread may run can change at any time.
Result<std::optional<std::uint32_t>> type_of_pmu(const std::vector<CorePmu>& pmus, pid_t thread) {
  if (pmus.empty()) return std::optional<std::uint32_t>{};
  VMM_ASSIGN(const auto allowed, allowed_cpus(thread));
  VMM_ASSIGN(const CorePmu* const pmu, choose_core_pmu(pmus, allowed));
  return std::optional{pmu->type};
}

class LinuxPerfHost final : public PerfHost {
 public:
  explicit LinuxPerfHost(EventOpener open) : open_{std::move(open)} {}
  [[nodiscard]] HostCpu cpu() const override { return this_host_cpu(); }

  Result<std::unique_ptr<PerfEvent>> open(const PerfEventSpec& spec) override {
    const auto thread = static_cast<pid_t>(::syscall(SYS_gettid));
    VMM_ASSIGN(Fd fd, open_(spec, thread));
    const f_owner_ex owner{F_OWNER_TID, thread};
    if (::fcntl(fd.get(), F_SETOWN_EX, &owner) != 0 || ::fcntl(fd.get(), F_SETSIG, kick_signal()) != 0 ||
        ::fcntl(fd.get(), F_SETFL, O_ASYNC) != 0)
      return host_error("fcntl of a perf event", errno);
    return std::make_unique<LinuxPerfEvent>(std::move(fd));
  }

  void run_loop(std::uint64_t iterations) override {
    const volatile std::uint8_t never = 0;
    loop(iterations, &never);
  }
  bool run_loop_until_kicked(std::uint64_t max) override {
    volatile std::uint8_t kicked = 0;
    const KickTarget target{&kicked};
    loop(max, &kicked);
    return kicked != 0;
  }

 private:
  // Each iteration is loop_instructions and loop_branches.
  static void loop(std::uint64_t iterations, const volatile std::uint8_t* stop) {
    if (iterations == 0) return;
    asm volatile(
        "1: cmpb $0, (%[stop])\n\t"
        "jne 2f\n\t"
        "decq %[left]\n\t"
        "jnz 1b\n\t"
        "2:"
        : [left] "+r"(iterations)
        : [stop] "r"(stop)
        : "cc", "memory");
  }

  EventOpener open_;
};

}  // namespace

perf_event_attr attributes_of(const PerfEventSpec& spec, std::optional<std::uint32_t> pmu) {
  perf_event_attr attr{};
  attr.size = sizeof attr;
  attr.type = pmu && spec.event.type == PERF_TYPE_RAW ? *pmu : spec.event.type;
  attr.config = spec.event.config;
  if (pmu && spec.event.type == PERF_TYPE_HARDWARE) attr.config |= std::uint64_t{*pmu} << PERF_PMU_TYPE_SHIFT;
  attr.sample_period = no_period;
  attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  attr.disabled = 1;
  attr.exclude_user = spec.usr ? 0 : 1;
  attr.exclude_kernel = spec.os ? 0 : 1;
  attr.exclude_hv = 1;
  attr.exclude_host = spec.guest_only ? 1 : 0;
  attr.exclude_guest = spec.guest_only ? 0 : 1;
  return attr;
}

EventOpener linux_event_opener(std::vector<CorePmu> pmus) {
  return [pmus = std::move(pmus)](const PerfEventSpec& spec, pid_t thread) -> Result<Fd> {
    VMM_ASSIGN(const auto type, type_of_pmu(pmus, thread));
    perf_event_attr attr = attributes_of(spec, type);
    Fd fd{static_cast<int>(::syscall(SYS_perf_event_open, &attr, thread, -1, -1, PERF_FLAG_FD_CLOEXEC))};
    if (!fd.valid()) return Failure{perf_open_error(errno, spec)};
    return fd;
  };
}

std::unique_ptr<PerfHost> make_linux_perf_host_of(std::vector<CorePmu> pmus) {
  return std::make_unique<LinuxPerfHost>(linux_event_opener(std::move(pmus)));
}

std::unique_ptr<PerfHost> make_linux_perf_host() { return make_linux_perf_host_of(read_core_pmus()); }

PerfHostFactory linux_perf_hosts(EventOpener open) {
  return [open = std::move(open)] { return std::make_unique<LinuxPerfHost>(open); };
}

}  // namespace vmm
